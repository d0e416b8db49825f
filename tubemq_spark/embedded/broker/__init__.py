"""The broker: it takes messages, keeps them, and gives them to consumers."""
