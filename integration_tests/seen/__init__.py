"""What a user sees, from the first line to the last, after each of the commonest mistakes."""
