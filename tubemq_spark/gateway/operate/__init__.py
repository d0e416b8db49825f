"""Numbers, and the pages that show them."""
