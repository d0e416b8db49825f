"""Views: what a batch read returns besides messages, by option ``view``.

A view is its columns and a function that makes its rows; ``reader.py`` lists all of them. The driver makes
the rows, when Spark plans the read: only it is sure to reach a checkpoint's directory and the web servers.

What cannot be known now, such as the end of a store whose broker is away, is null, and not an error.
"""
