"""What group consumers and assigned consumers share."""
