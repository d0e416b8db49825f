"""Write docs/gateway/gateway.md from the settings of the gateway; a unit test compares the two."""

import dataclasses
from pathlib import Path

from tubemq_spark.gateway.settings import ENVIRONMENT_PREFIX, SETTINGS, GatewaySettings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "gateway" / "gateway.md"

HEAD = """\
# Gateway

<!-- Written by `make docs` from tools/gen_gateway_docs.py and tubemq_spark/gateway/settings.py. -->

A gateway is a process between many clients and the few servers of a TubeMQ cluster. It speaks gRPC with its
clients, and TubeMQ's own protocol with masters and brokers.

- **Few connections.** All clients that read share one connection to each broker. All that publish with equal
  settings share one producer.
- **One way through a firewall.** Clients reach the gateways only, and no broker.
- **Rights.** A policy says which clients there are, and what each may read and write.
- **Nothing to lose.** A gateway keeps nothing that another one needs. When one is lost, its clients go on at
  the next one.

If you need none of these, reach TubeMQ directly: each message then has one process less to pass.

## Start

```bash
pip install 'tubemq_spark[gateway]'
tubemq-gateway --master-servers 10.1.2.3:8715,10.1.2.4:8715 --listen 0.0.0.0:11911
```

Start two or more, on different hosts. `tubemq-spark gateway` is the same command. `--check-config` and
`--print-config` only look at the settings. With `--report-seconds 10` a line every 10 s says what the gateway
is doing.

The directory `deploy` of the source distribution has

- `tubemq-gateway@.service`, a unit of systemd. It runs one process for each port of metrics:
  `systemctl enable --now tubemq-gateway@{9191,9192}`. A process may write nothing but its log;
- `tls.conf`, a drop-in for that unit: the private key stays readable for root only, and a renewed key is used
  after a restart;
- `gateway.toml` and `policy.toml`, its settings and an example of a policy;
- `prometheus/rules.yml` and `grafana/tubemq-gateway.json`, alerts and a
  [dashboard](../spark/monitoring.md#rules-and-dashboards);
- `Dockerfile`, an image that is healthy while it takes calls. Only the container itself reaches its metrics,
  unless `TUBEMQ_GATEWAY_METRICS` says otherwise.

`docker compose --profile gateway up -d --wait` starts a TubeMQ and two gateways.

## Use it

In Spark one option is different. The packages of the extra `gateway` must be on the driver and on every
executor.

```python
rows = (
    spark.readStream.format("tubemq")
    .option("tubemq.gateway.servers", "gateway1:11911,gateway2:11911")
    .option("subscribe", "clicks")
    .load()
)
```

- Rows, errors, checkpoints and receipts are those of a direct connection. A query may change from one way to
  the other.
- A partitioner of your own, an encrypted key and `tubemq.master.web` cannot be used.
- TubeMQ's access control sees the user of `tubemq.username`. The gateway needs the password to log in, so
  both options need `tubemq.tls.enabled`.

Without Spark, `TubeMQClient.connect("gateway://gateway1:11911,gateway2:11911?group=etl")` has producers,
readers and consumers: [through gateways](../client/which-consumer.md#through-gateways).

Name all gateways. Each process has the list in an order of its own, so many processes use all gateways. A
balancer that distributes connections may stand in between. One that distributes single calls may not: a
session is at one gateway.

## What clients see

| what happens | what clients do |
|---|---|
| a gateway is busy | They ask it again when it says, a little later by chance. After 5 s of that they try the next one |
| a gateway is killed | A range continues at the next gateway where it stood. Batches of a consumer that were not confirmed come again. Messages whose answer was lost are sent again |
| a gateway drains | The same, but no message is sent twice: what it took, it answers |
| no master answers | Gateways use what a master said last about partitions, for `route_expiry_ms` |
| a broker does not answer | The same as without gateways: its partitions wait, and all others go on |
| the policy no longer allows what they do | Their calls end with `TUBEMQ_GATEWAY_FORBIDDEN` or `TUBEMQ_GATEWAY_LOGIN` |

A message whose answer was lost may be stored twice; receipts count these messages (`retried`, `unanswered`).
With `retryAmbiguous=false` it is not sent again, and the write fails: `TUBEMQ_GATEWAY_LOST`.

## Limits, and who counts

All clients share the limits of a gateway. A *client* is the name that the policy gives; without a policy, the
names in the client's certificate; without a certificate, its host.

| setting | counts | what is more |
|---|---|---|
| `sessions` | open sessions | is refused |
| `streams` | calls of one connection | waits at the client |
| `calls` | calls in all, those that wait included | is refused |
| `fetches` | fetches that wait, and consume streams | is refused |
| `reads` | ranges that are read | waits until others have ended |
| `waiting_calls` | calls that wait until others have ended | is refused |
| `publishes` | producers, one for all sessions of equal settings | is refused, unless an idle one can be closed |
| `total_bytes` | bytes of messages of all clients, until brokers have stored them or clients have read them | waits; a publish stream is not read any further |
| `session_bytes` | those of one session | the same |
| `max_message_bytes` | bytes of one gRPC message | is refused by gRPC |

- A call waits for `queue_ms` at most, and not longer than its client does. Then it is refused. A range or a
  publish stream that is under way waits for bytes as long as it lives.
- A refusal is `RESOURCE_EXHAUSTED`, `TUBEMQ_GATEWAY_BUSY`. It says when to try again.
- Clients take turns, and so do the sessions of one client. While others wait, a client gets half of a limit
  at most. The last eighth of it is for clients that use less than half.
- A client that does not read what is ready for it, or has sent only a part of a batch, loses its place after
  `stall_ms` if others wait.
- A gateway asks masters and brokers as many questions at a time as one eighth of `reads` and `publishes`
  together, at least eight; over HTTP, four. More of them wait as ranges do. A question ends with its call.
- Publish streams read as many messages of `max_message_bytes` at a time as fit into `total_bytes`, those of one
  session as many as fit into three quarters of its `session_bytes`, but 64 and 12 at least. While others wait to
  read, a stream with nothing to answer ends after a second, as at a gateway that is busy; its client opens
  another one with its next batch.
- `CloseSession`, `Commit` and `DetachPartitions` are never refused for a limit. Heartbeats and the end of a
  consumer wait for nothing.
- Timeouts that clients set are cut to `longest_wait_ms`. A batch has 32 MiB at most, and not more than
  `session_bytes`.

## Threads, memory and size

| what | how much |
|---|---|
| gateways | Two at least. Each must carry the whole load while another one is away |
| cores | A process uses little more than one. On larger hosts start one process per core with `reuse_port` and the same `listen`: the system distributes connections over them |
| threads | About ten, most of them of gRPC, however many clients there are. Questions over HTTP and batches of more than 16,384 rows or 4 MiB need some for a moment |
| memory | Twice `total_bytes`, and half a GiB for the process. A session takes about 3 KB, its consumer about 30 KB |
| sockets | One per Python process of Spark, one per consumer without Spark, one per broker for all reading, and one per broker for each producer. Raise the limit of open files (`LimitNOFILE`) accordingly |
| network | Each byte comes in once and goes out once |

`reads` should be as large as the number of tasks that read at a time. A core serves about 1,300
heartbeats per second, or 400 ranges of 100 rows. Many clients cost less with `SessionEvents` than with
heartbeats. `benchmarks/README.md` has the figures.

## Sessions and secrets

A client opens a session under an id that it chooses, with a random secret. Each call shows id, epoch and
secret. No answer and no log tells a secret.

- The id of an open session is refused to a client with another secret (`TUBEMQ_SESSION_TAKEN`), unless the
  policy says that it is the same client. With a wrong secret a session is as unknown as one that is not
  there.
- With `tls_client_ca` and no policy, a session also belongs to the names in the certificate that opened it.
- A client that starts again has a larger epoch. Its older session ends (`TUBEMQ_SESSION_FENCED`).
- When a session ends, its calls end, and its partitions are given up. Nothing more is stored for it, but for
  what is on its way to a broker.
- A session that is silent for `lease_ms` ends. A call that is under way keeps it alive.
- Passwords of TubeMQ's users are refused without TLS, on the loopback interface too.

`ListSessions` tells ids, groups, addresses and ages, and neither epochs nor secrets. With a policy only
operators may call it.

## TLS

With `tls_cert` the gateway speaks TLS only. With `tls_client_ca` clients must show a certificate of that CA.
The settings that begin with `master_tls` are about masters and brokers.

The files may be replaced while the gateway runs. Each new connection sees the new ones, and open connections
stay. While certificate and key do not fit together, the gateway uses those of before.

Certificates of clients are not looked up in lists of revoked ones (CRL), nor asked about (OCSP): one that was stolen is
accepted until it expires. So let them live shortly, and name them in a `policy`: a name that is taken out of the policy
is refused at once.

## Who may do what

Without `policy`, every client that reaches the port can use the gateway, within the rights that TubeMQ gives
to all, or to the user that the client names. Therefore a gateway listens on 127.0.0.1 unless told otherwise.
With a policy, a file says which clients there are, and what each of them may do:

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

- A client shows its token with each call, as `authorization: Bearer ...`. In Spark that is the option
  `tubemq.gateway.token`. A policy needs `tls_cert`, so that the token cannot be read on its way.
- Who reads needs the right to the group that its session names, or to `tubemq_gateway` if it names none.
  Who only publishes needs no group.
- What a client has no right to is refused (`PERMISSION_DENIED`), and left out of lists of topics and groups.
  A session belongs to the client that opened it: to others it is unknown. Health and reflection need no
  rights.
- Names in certificates are compared as they are, and written with their kind: `CN=` for the common name of
  the subject; `DNS:`, `URI:`, `IP:` and `email:` for alternative names.
- Every `housekeeping_ms` the gateway looks whether the content of the file has changed. Sessions and
  streams end whose client was removed, or whose token or certificate was; so do calls that need a right which
  was taken away. To change a token, have both in the file until all clients show the new one. A file with a
  mistake changes nothing; the log has a warning, and `tubemq_gateway_policy_failures_total` counts it.
- With `master_username` and `master_password` the gateway logs in at TubeMQ for clients that name no user. No
  client is told either of them. With `master_admin_token` clients may create the topics that `create` allows.

## Drain and rolling restart

After SIGTERM or SIGINT

1. health says `NOT_SERVING`, and new calls are refused with `UNAVAILABLE`; clients go to another gateway;
2. ranges end, and continue elsewhere; publish streams take no more batches, and end when all that they took
   is answered;
3. fetches that wait are answered without messages, and streams of events and of batches end. What was fetched
   and not committed comes again, at the next gateway;
4. what still runs after `drain_ms` is cut, and the process ends with exit code 0.

A drain takes as long as the calls that are under way. A second signal does not wait. Other exit codes: 2 the
configuration is wrong, 3 the gateway cannot listen, 4 no master can be reached and `require_master` is set.

For a rolling restart stop one gateway, start it again, and stop the next one when `/health` of the first says
`serving`. Queries go on at the others.

## Log, metrics and alerts

With `metrics` the gateway serves numbers for Prometheus, a status page and a health check.
[Metrics of a gateway](metrics.md) lists them, with an alert for each thing that operators must know:
refused calls, calls that queue, no master, memory, a slow event loop, a certificate that expires, lost
clients, a policy with a mistake. Ended sessions and redirected clients are normal, and count apart from
failures.

The log goes to stderr or to `log_file`, in UTC, under the logger `tubemq_spark.gateway`. The logger
`access` below it has each failed call, and one in `access_log_every` of the others; single messages have no
lines. With `log_json` each entry is one line of JSON. No client can forge a line or fill a disk: what is
not printable is escaped (`\\n`, `\\x1b`), a value is cut at 1,000 characters, and of each kind of warning
and of failure ten per minute are written and the others counted.

A master is asked again every `route_refresh_ms` where partitions are. While no master answers, health stays
`SERVING`; `DescribeGateway` and the metric `tubemq_gateway_degraded` say so.

## Other clients

[gateway.proto](../../tubemq_spark/protocol/gateway/proto/tubemq/gateway/v1/gateway.proto) describes the
service, `tubemq.gateway.v1.GatewayService`. The gateway also serves gRPC's health service and reflection:

```bash
grpcurl -plaintext gateway1:11911 grpc.health.v1.Health/Check
grpcurl -plaintext gateway1:11911 tubemq.gateway.v1.GatewayService/DescribeGateway
```

| methods | what they do |
|---|---|
| `QueryRoute`, `QueryBounds`, `ReadRange` | read what a topic holds, without moving any group |
| `PublishStream` | stores messages |
| `CreateTopic` | creates a topic, where the operator allows it |
| `Subscribe` | makes the session a member of its group: the master distributes partitions among its members, and the event `partitions_changed` tells which the session has |
| `AttachPartitions`, `DetachPartitions` | take partitions that the client names, and give them up |
| `Fetch` | waits for messages, 20 s at most |
| `Consume` | the same as one long call: batches come as long as the client gives credit, in bytes |
| `Commit` | confirms a batch; it may be repeated. What was not committed comes again: after `confirm_timeout_ms` of the session's settings, and at once when the session moves to another gateway |
| `SessionEvents` | tells what happens to a session: the gateway drains, a partition was lost or passed over lost records, a topic has other partitions, members of the group came or went. Heartbeats tell it too |
| `ListMembers`, `ListGroups` | tell who consumes, and what administrators have set for a group, up to 5 s late |

TubeMQ's brokers answer at once when they have nothing. So of all consumers that wait for a partition, one
asks the broker every `poll_ms`. What is published through the gateway wakes them at once.

How sessions, errors, columns and streams work, with examples in Java: [Protocol](protocol.md).

This reads what a topic holds as a group, and ends. Any language with gRPC does the same with what `protoc`
generates from the file.

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
"""  # noqa: E501 (rows of tables)

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
