"""What a server is set up with, by its maker and by operators, and how that is kept."""
