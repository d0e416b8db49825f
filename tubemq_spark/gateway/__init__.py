"""The gateway: one gRPC service between many clients and the few brokers of a TubeMQ cluster.

It runs in one event loop (``grpc.aio``). What talks to TubeMQ is the client package. Its producers and
consumers live in that loop. Its other calls block: they run in threads, of which each kind of call has its
own bounded number (``admission``). So reads cannot use up the threads of other calls, and sessions and
heartbeats need none.

``settings``, ``loading`` and ``policy`` say what it may do, ``operate`` counts and shows it, ``session`` is
what every call goes through, and ``handlers`` has a module for each kind of call. ``server`` is the whole,
``process`` the whole as a process, and ``background`` the whole in a thread beside other work.
"""
