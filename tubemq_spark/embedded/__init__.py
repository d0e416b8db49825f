"""A TubeMQ of its own: a master and brokers in one process, on disk, speaking TubeMQ's wire protocol.

Threads
-------

======================= ==================================================================================
``tubemq-listen-*``     One per port, RPC and web, of the master and of each broker: accepts connections.
``tubemq-serve-*``      One per connection: reads requests, runs their handlers, writes the answers.
``tubemq-scheduler``    One for the master: expires clients and balances groups. Two per running broker:
                        one expires leases; the other does what waits for the disk (flushes stores, saves
                        offsets, applies retention, forgets idle groups).
The caller's thread     Starts and stops brokers, changes topics, sets faults.
======================= ==================================================================================

Locks
-----

What is read often is replaced as a whole and read without a lock: ``JsonFile.value``, ``BrokerNode.broker``,
the maps of ``BrokerList`` and ``BrokerNodes``, an open store in ``StoreSet``. Locks guard changes. A thread
that holds one of these locks may only take locks below it:

============================================ =============================================================
``_change_lock``, ``RecordChanges.lock``     A web call reads a record and changes it.
``BrokerNodes._adding_lock``                 Opening one more broker.
``BrokerNode._lock``                         Starting, stopping and freezing a broker.
``BrokerState.topics_lock``                  Changing a topic, and deleting what belongs to it.
``GroupPosition.lock``, one per partition    A partition's position and lease; see ``broker.consume``.
``StoreSet._lock``                           Opening, removing and closing stores.
``Store._flush_lock``                        One flush of a store at a time; see ``log.store``.
``Store._lock``                              The ends of a store's two logs.
``JsonFile.lock``, one per file              From reading a value to replacing it.
``MasterState.lock``                         The members of all groups, and their events.
============================================ =============================================================

All other locks guard a few fields of one object, and no other lock is taken under them. The exception is
``RuleBook._lock``: under it rules are ended and interceptors are set, which takes such locks.

No lock is held while a thread waits for a client. A request that a fault holds waits before its handler runs.
"""
