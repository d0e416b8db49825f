"""The gateway: one gRPC service between many clients and the few brokers of a TubeMQ cluster.

It runs in one event loop (``grpc.aio``). What talks to TubeMQ is the client package, whose coroutines live in
that loop: questions, ranges, producers and consumers. What is scarce is shared by its clients
(``admission``), so that none of them keeps the others out, and sessions and heartbeats wait for nothing.

``settings``, ``loading`` and ``policy`` say what it may do, ``operate`` counts and shows it, ``session`` is
what every call goes through, and ``handlers`` has a module for each kind of call. ``server`` is the whole,
``process`` the whole as a process, and ``background`` the whole in a thread beside other work.
"""
