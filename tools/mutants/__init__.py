"""Break the package on purpose, and see whether its unit tests notice: ``python -m tools.mutants --help``."""
