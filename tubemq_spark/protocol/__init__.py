"""TubeMQ's wire protocol as functions of bytes and values: no socket, thread, clock, Arrow or Spark."""
