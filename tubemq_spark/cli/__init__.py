"""The command line: ``tubemq-spark embedded`` and ``tubemq-spark demo``."""
