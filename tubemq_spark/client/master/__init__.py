"""Sessions with the masters: who a client is, and what the masters tell it."""
