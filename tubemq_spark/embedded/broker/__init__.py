"""The broker: it stores messages and delivers them to consumers."""
