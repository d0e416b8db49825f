"""The peer of the benchmarks: Apache Kafka and Spark's own Kafka connector, fetched by Maven."""
