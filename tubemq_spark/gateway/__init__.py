"""The gateway: one gRPC service between many clients and the few brokers of a TubeMQ cluster.

It runs in one event loop (``grpc.aio``). What talks to TubeMQ is the client package, whose coroutines live in
that loop: questions, ranges, producers and consumers. What is scarce is shared by its clients
(``admission``), so that none of them keeps the others out, and sessions and heartbeats wait for nothing.

``settings`` and ``policy`` say what it may do, ``metrics`` counts, ``overview`` and ``web`` show it.
``calls`` is what every call goes through, and ``listener`` binds the services to gRPC. ``server`` is the
whole; ``process`` runs it as a process, or in the event loop of another one.
"""
