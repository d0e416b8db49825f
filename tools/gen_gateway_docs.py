"""Write docs/gateway/gateway.md from the settings of the gateway; a unit test compares the two."""

import dataclasses
from pathlib import Path

from tubemq_spark.gateway.settings import ENVIRONMENT_PREFIX, SETTINGS, GatewaySettings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "gateway" / "gateway.md"

HEAD = """\
# Gateway

<!-- Written by `make docs` from tools/gen_gateway_docs.py and tubemq_spark/gateway/settings.py. -->

A gateway is a process between many clients and the few servers of a TubeMQ cluster. It speaks gRPC with its
clients and TubeMQ's own protocol with masters and brokers.

- **Few connections.** All that read through a gateway share one connection to each broker, however many
  executors there are. Those that publish at the same time, with equal settings, have connections of their
  own, which the next ones get as soon as everything is stored.
- **One way through a firewall.** Driver and executors reach the gateways only, and no broker.
- **Nothing to lose.** A gateway keeps nothing that another one needs. When one is killed, its clients go on
  at the next one: a range where it stood, and messages that may not be stored are sent again.

Without a need for one of these, reach TubeMQ directly: that is one step less on the way of each message.

## Run one

```bash
pip install 'tubemq_spark[gateway]'
tubemq-gateway --master-servers 10.1.2.3:8715,10.1.2.4:8715 --listen 0.0.0.0:11911
```

Run two or more, on different hosts. `tubemq-spark gateway` is the same command. `--check-config` and
`--print-config` only look at the settings; with `--report-seconds 10` a line every 10 s says what the gateway
is doing.

## Use it

One option is different; the packages of the extra `gateway` must be on the driver and on every executor.

```python
rows = (
    spark.readStream.format("tubemq")
    .option("tubemq.gateway.servers", "gateway1:11911,gateway2:11911")
    .option("subscribe", "clicks")
    .load()
)
```

- Rows, errors, checkpoints and receipts are those of a direct connection; a query may change from one way to
  the other.
- The first gateway that answers is used until it is away, is about to stop, or is busy.
- A partitioner of your own, an encrypted key and `tubemq.master.web` cannot be used with gateways.
- TubeMQ's access control sees the user of `tubemq.username`. The gateway needs the password to log in, so
  both options need `tubemq.tls.enabled`.
- Gateways may demand to know who calls: [Who may do what](#who-may-do-what).

Without Spark, `TubeMQClient.connect("gateway://gateway1:11911,gateway2:11911?group=etl")` has producers,
readers and consumers that go through gateways:
[through gateways](../client/which-consumer.md#through-gateways).

## Sending through a gateway that is lost

What was accepted and not flushed may be stored or not. By default it is sent again, so it can be stored
twice; the receipts say how many were (`retried`, `unanswered`). With `retryAmbiguous=false` the write fails
with `TUBEMQ_GATEWAY_LOST` instead. A gateway that is stopped by a signal has everything stored first.

## TLS

With `tls_cert` the gateway speaks TLS only, and with `tls_client_ca` clients must show a certificate of that
CA. On its other side `master_tls` and the settings that begin with it are about masters and brokers.

The files may be replaced while the gateway runs: each new connection sees the new ones, and open connections
stay. As long as certificate and key do not fit together, those of before are used.

## Who may do what

Without `policy`, every client that reaches the port can use the gateway, within the rights that TubeMQ gives
to all or to the user that the client names; so it listens on 127.0.0.1 unless told otherwise. A session can
only be used with the secret that its client chose, which no answer and no log tells; with `tls_client_ca`, a
certificate of the same names is needed, too. Passwords of users are taken over TLS only. With a policy, a
file says which clients there are, and what each of them may do:

```toml
[[clients]]
name = "etl"
# printf %s "$TOKEN" | sha256sum; several for a change of tokens.
token_sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
# Topics and groups; * stands for any text. Who reads uses groups such as etl_r00, too.
read = ["clicks", "orders_*"]
group = ["etl*"]

[[clients]]
name = "collector"
# Instead of a token: a name in the certificate that it shows (needs tls_client_ca).
certificate = ["DNS:collector.example.com"]
write = ["clicks"]
# The group that Spark's writers name.
group = ["tubemq_spark"]

[[clients]]
name = "monitoring"
certificate = ["CN=ops"]
# May see the sessions of all clients.
operator = true
```

- A client shows its token with each call, as `authorization: Bearer ...`; a query does that with
  `tubemq.gateway.token`. A policy needs `tls_cert`, so that the token cannot be read on its way.
- What a client has no right to is refused (`PERMISSION_DENIED`), and left out of lists of topics and groups.
  A session belongs to the client that opened it: to others it is unknown, and only the same client can open
  it again with another secret. Health and reflection need no rights.
- Names in certificates are compared as they are, and written with their kind: `CN=` for the common name of
  the subject; `DNS:`, `URI:`, `IP:` and `email:` for alternative names.
- Every `housekeeping_ms` the gateway looks whether the content of the file has changed. Calls are judged by
  the new one from then on, and streams that it does not allow any longer end at once. A file with a mistake
  changes nothing; the log has a warning, and `tubemq_gateway_policy_failures_total` counts it.
- With `master_username` and `master_password` the gateway logs in at TubeMQ for clients that name no user. No
  client is told either of them.

## Stopping

After SIGTERM or SIGINT

1. health says `NOT_SERVING`, and new calls are refused with `UNAVAILABLE`; clients go to another gateway;
2. ranges that are read end there and go on elsewhere; who publishes is told, has everything stored, and goes
   on elsewhere; a publish stream of which everything is stored ends with that refusal;
3. fetches that wait are answered without messages, and streams of events, routes and batches end with that
   refusal; what was sent and not committed comes again, at the next gateway;
4. what still runs after `drain_ms` is cut, and the process ends with exit code 0.

For a rolling restart stop one gateway after the other, the next one when `/health` of the first says
`serving` again. Queries go on at the others, which must be able to carry the load for so long. A drain takes
as long as the calls that are under way.

A second signal does not wait. Other exit codes: 2 the configuration is wrong, 3 the gateway cannot listen, 4
no master can be reached and `require_master` is set.

## Other clients

[gateway.proto](../../tubemq_spark/protocol/gateway/proto/tubemq/gateway/v1/gateway.proto) describes the
service, `tubemq.gateway.v1.GatewayService`. The gateway also serves gRPC's health service and reflection:

```bash
grpcurl -plaintext gateway1:11911 grpc.health.v1.Health/Check
grpcurl -plaintext gateway1:11911 tubemq.gateway.v1.GatewayService/DescribeGateway
```

- `QueryRoute`, `QueryBounds` and `ReadRange` read what a topic holds, without moving any group.
- `PublishStream` stores messages.
- `CreateTopic` creates a topic, where the operator allows it.
- `AttachPartitions`, `Fetch` and `Commit` consume as a group: TubeMQ's broker answers at once when it has
  nothing, and the gateway waits for it, up to 20 s per call. Of all that wait for a partition one asks the
  broker, every `poll_ms`; what is published through the gateway is there at once.
- `Subscribe` makes the session a member of its group instead: the master distributes the partitions among its
  members, and the event `partitions_changed` tells which the session has.
- `Consume` is a `Fetch` that goes on: batches come as long as the client gives credit, in bytes.
- A `Commit` may be repeated. What was not committed comes again: after the time that the session's settings
  name, and at once when the session moves to another gateway, or its stream ends.
- `SessionEvents` tells what happens to a session: the gateway drains, a partition was lost or has gone on
  behind records that are gone, a topic has other partitions, others of the group came or went. Heartbeats
  tell it too; a session with such a stream needs none, which is cheaper where there are many.
- `ListMembers` and `ListGroups` say who consumes, and what administrators have set for a group, as a master
  knows it, up to 5 s late.

How sessions, errors, columns and streams work, with examples in Java: [Protocol](protocol.md).

This reads what a topic holds as a group, and ends. Any language with gRPC does the same with what `protoc`
makes of the file.

```python
import array
import itertools
import os
import time

import grpc

from tubemq_spark.protocol.gateway import gateway_pb2 as pb

me = pb.SessionRef(client_id="example-1", epoch=time.time_ns(), secret=os.urandom(32))
metadata = [("tubemq-session-bin", me.SerializeToString())]
with grpc.insecure_channel("gateway1:11911") as channel:

    def call(name, request, answer):
        path = f"/tubemq.gateway.v1.GatewayService/{name}"
        ask = channel.unary_unary(path, type(request).SerializeToString, answer.FromString)
        return ask(request, timeout=30, metadata=metadata)

    opening = pb.OpenSessionRequest(client_id=me.client_id, epoch=me.epoch, secret=me.secret)
    opening.settings.group = "example"
    call("OpenSession", opening, pb.OpenSessionResponse)
    route = call("QueryRoute", pb.QueryRouteRequest(topics=["clicks"]), pb.QueryRouteResponse)
    wanted = [
        pb.AttachPartitionsRequest.Wanted(partition=one.partition, offset=0) for one in route.partitions
    ]
    attach = pb.AttachPartitionsRequest(partitions=wanted)
    for attached in call("AttachPartitions", attach, pb.AttachPartitionsResponse).partitions:
        if attached.HasField("error"):
            raise SystemExit(attached.error.text)
    while True:
        batch = call("Fetch", pb.FetchRequest(wait_ms=1_000), pb.FetchResponse)
        if not batch.records.count:
            break
        data, borders = batch.records.data, array.array("i", batch.records.borders)
        for start, end in itertools.pairwise(borders[: batch.records.count + 1]):
            print(data[start:end])
        call("Commit", pb.CommitRequest(batch=batch.batch), pb.CommitResponse)
    call("CloseSession", pb.CloseSessionRequest(), pb.CloseSessionResponse)
```

## Log and metrics

The log goes to stderr or to `log_file`, in UTC, under the logger `tubemq_spark.gateway`. Of the calls,
`access` below it has each failure and one in `access_log_every`; there is no line for single messages. What
clients name cannot forge a line or fill a disk: what is not printable is escaped (`\\n`, `\\x1b`), a value is
cut at 1,000 characters, and of warnings and of failures of a condition ten in a minute are written, and the
others counted. With `log_json` each entry is one line of JSON.

Routes are asked again every `route_refresh_ms`. While no master answers, those that are known are used, for
up to `route_expiry_ms`; health stays `SERVING`, and `DescribeGateway` and a metric say that the gateway is
degraded.

With `metrics` the gateway serves its numbers for Prometheus, a status page for people, and a health check:
[Metrics of a gateway](metrics.md).

## Size

- **Gateways.** Two at least, so that one can stop; each must be able to carry all of the load. A process uses
  little more than one core: on hosts with more, start one for each core with `reuse_port` and the same
  `listen`. The system then spreads connections over them, of which each Python worker of Spark has one.
- **Threads.** A range that is read and a client that publishes have a thread each, as long as that takes.
  So `reads` and `publishes` should be as large as the number of tasks that read or write at a time; short
  calls have one thread for each eight of these. Further ones wait for their turn, for `queue_ms` at most,
  and then try other gateways. Consumers have no threads: ten thousand may wait in one gateway. Clients take
  turns, and one that does not read what it asked for loses its turn.
- **Clients.** One client, by its name in the policy or else by its host, gets all that others leave, but for
  the last eighth of sessions, threads, calls and bytes; while others wait for these, it gets half at most.
- **Memory.** That of the process, and the messages that wait in it: for each range four batches of half a MiB
  at most, and `total_bytes` for all together.
- **Sockets.** One for each client; one to each broker for all that is read; and one to each broker for each
  client that publishes at the same time. Raise the limit of open files (`LimitNOFILE`) accordingly.
- **Network.** Each byte comes in and goes out once.

## Run it as a service

The directory `deploy` of the source distribution has

- `tubemq-gateway@.service`, a unit of systemd that runs one process for each port of metrics:
  `systemctl enable --now tubemq-gateway@{9191,9192}`. It may write nothing but its log, and has as much
  memory as `total_bytes` needs;
- `tls.conf`, a drop-in for it: the private key stays readable for root only;
- `gateway.toml` and `policy.toml`, the settings for it and an example of a policy;
- `Dockerfile`, an image that is healthy as long as it takes calls. Only the container itself reaches its
  metrics, until `TUBEMQ_GATEWAY_METRICS` says otherwise.

`docker compose --profile gateway up -d --wait` starts a TubeMQ with two gateways before it.
"""

SETTINGS_HEAD = f"""
## Settings

In a TOML file as `lease_ms = 30000`, in the environment as `{ENVIRONMENT_PREFIX}LEASE_MS=30000`, as an
argument `--lease-ms 30000`. The argument counts before the environment, and that before the file. Secrets are
no arguments. Paths in a file are relative to it.

| setting | what it says | values | default |
|---|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    return HEAD + SETTINGS_HEAD + "".join(_settings())


def _settings() -> list[str]:
    lines = []
    for field in dataclasses.fields(GatewaySettings):
        declared = SETTINGS[field.name]
        value = declared.default
        default = "" if value in (None, ()) else f"`{declared.kind.show(value)}`"
        if field.default is dataclasses.MISSING:
            default = "required"
        lines.append(f"| `{field.name}` | {declared.doc} | {declared.kind.expected} | {default} |\n")
    return lines


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
