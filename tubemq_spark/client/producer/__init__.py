"""From a message to a broker's acknowledgement."""
