"""Questions that are asked once: layouts, bounds, positions, topics, and the administration API."""
