"""Small files in folders, local or remote."""
