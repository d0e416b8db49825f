"""Sockets, threads and deadlines, for the client and for the embedded server."""
