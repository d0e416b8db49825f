"""The client's core in simulated worlds, each of which a seed plays back: see CONTRIBUTING.md."""
