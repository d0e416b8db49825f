"""Messages on their way between clients and brokers."""
