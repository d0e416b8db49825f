"""Names that other clients have for the same things, and answers for users who try them."""
