"""What every call goes through, and what calls share."""
