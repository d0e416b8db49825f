"""The gateway: one gRPC service between many clients and the few brokers of a TubeMQ cluster.

It runs in one event loop (``grpc.aio``). What talks to TubeMQ is the client package, whose calls block: they
run in threads, of which each kind of call has its own bounded number (``workers``). So reads and publishes
cannot use up the threads of other calls, and sessions and heartbeats need none.

=============  ==============================================================================================
module         what it does
=============  ==============================================================================================
settings       all settings, each with its text
loading        settings from a file, the environment and flags
policy         clients and their rights, from a file
guard          enforces them
sessions       who the clients are: names, epochs, leases
upstream       TubeMQ, as each session sees it; one pool of connections for all
routes         where partitions are, as masters said a moment ago
workers        threads of one kind of call
budget         bytes that wait in the process
calls          what each call goes through: limits, errors, the log, metrics
control        sessions, routes, offsets
reading        ranges, streamed
publishing     messages to send
consuming      partitions that a client attaches, fetched with a wait
operations     what operators ask
certificates   what it shows to clients, as the files are now
channelz       gRPC's own view of its connections
metrics        numbers in Prometheus' text format
overview       what a gateway is doing, as one value
observing      puts it together
status_page    shows it as HTML
web            serves that and the metrics over HTTP
server         the whole: its beginning, its drain, its end
log            where the log of a process goes
process        the whole as a process: its log, signals, exit codes
background     the whole in a thread beside other work
=============  ==============================================================================================
"""
