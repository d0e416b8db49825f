"""Writing Spark's frames to TubeMQ: columns, the sending task, receipts."""
