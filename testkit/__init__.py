"""What the unit tests and the integration tests share."""
