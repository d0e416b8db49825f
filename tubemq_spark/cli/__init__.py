"""The command line, ``tubemq-spark``: a module or a folder for each command, and what they share."""
