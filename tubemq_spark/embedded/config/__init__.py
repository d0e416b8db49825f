"""What a server is configured with, by the program that starts it and by operators, and how it is stored."""
