"""How settings are declared."""
