"""The one grammar of settings: kinds of values, and settings, declared once as fields of dataclasses.

To add one is to add a field. A client's settings are in ``client/config.py`` and
``client/consumer_config.py`` (their names are the keys of URLs), the options of Spark in
``options/table.py``, a gateway's settings in ``gateway/settings.py``. Parsers, checks, messages, arguments of
commands and reference pages read the fields. ``fields.Sources`` reads files, variables and arguments, for
gateways and commands.
"""
