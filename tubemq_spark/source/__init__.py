"""Reading TubeMQ into Spark: columns, planning on the driver, ranges on the executors."""
