"""Sockets, threads and time: the only room that touches them for the client and the embedded server."""
