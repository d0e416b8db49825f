"""Programs to copy, each complete in one file; ``tubemq-spark examples`` lists and copies them."""
