"""TubeMQ's verbs: register, fetch, commit, produce; a complete client that works without Spark."""
