"""Names that users give: those of groups, and those that other clients have for the same things."""
