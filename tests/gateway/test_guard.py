"""With a policy, each call shows who makes it, and is refused when the policy does not allow it."""

import contextlib
import dataclasses
import logging
import urllib.request
from types import SimpleNamespace

import pytest

from testkit.certificates import Authority
from tests.embedded.web import change as change_at_master
from tests.gateway.fleet import BEGIN, batch_to, consuming, hearing, place, publish, publishing
from tests.gateway.running import FENCED, NO_SESSION, Stream, end_of, gateway, refused
from tests.gateway.secured import TOKENS, SecuredClient, digest, policy_text
from tests.waiting import wait_until
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.metadata.admin import BrokerAdmin
from tubemq_spark.client.remote.gateways import close_process_gateways
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import AdminError, GatewayError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.send_batch import SendBatch

pytestmark = pytest.mark.usefixtures("nothing_left_behind_by_the_module")

PASSWORD = "upstream-secret"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """An authority, a certificate of the gateway, and the path of the policy."""
    directory = tmp_path_factory.mktemp("secured")
    authority = Authority(directory)
    return authority, authority.issue("gateway"), directory / "policy.toml"


@pytest.fixture(scope="module")
def served(files, nothing_left_behind_by_the_module):
    _, pair, policy = files
    policy.write_text(policy_text())
    upstream = EmbeddedSettings(
        authenticate_producers=True, authenticate_consumers=True, users={"gateway": PASSWORD}
    )
    changes = {
        "tls_cert": str(pair.cert),
        "tls_key": str(pair.key),
        "policy": str(policy),
        "metrics": Endpoint("127.0.0.1", 0),
        "master_username": "gateway",
        "master_password": PASSWORD,
        "access_log_every": 1,
        "housekeeping_ms": 20,
    }
    topics = {"clicks": (1, 1), "hidden": (1, 1)}
    with (
        EmbeddedTubeMQ(topics=topics, brokers=2, settings=upstream) as server,
        gateway(server, **changes) as running,
    ):
        yield running
        close_process_gateways()


@pytest.fixture
def connect(served, files):
    made = []

    def connect(name=None, client_id=None, token=None, pair=None, group="reader"):
        shown = f"Bearer {TOKENS[name]}" if name in TOKENS else token
        client = SecuredClient(served.address, files[0], client_id or f"client of {name}", shown, pair)
        made.append(client)
        if name is not None:
            client.open(group=group)
        return client

    yield connect
    for client in made:
        client.channel.close()


def refusal(call, *arguments, **fields):
    return refused(call, *arguments, **fields).end


FORBIDDEN = ("PERMISSION_DENIED", "TUBEMQ_GATEWAY_FORBIDDEN")
UNKNOWN = ("UNAUTHENTICATED", "TUBEMQ_GATEWAY_LOGIN")


def batch(topic, number=1):
    return pb.PublishStreamRequest(batch=batch_to(topic, b"x"), number=number)


@pytest.mark.parametrize("token", [None, "Bearer guess", "Bearer ", "Basic dTpw"])
def test_a_client_that_shows_nothing_or_something_unknown_is_refused_everywhere(connect, token):
    client = connect(token=token)
    for name in ("OpenSession", "Heartbeat", "ListTopics", "ReadRange", "PublishStream", "DescribeGateway"):
        assert refusal(client, name) == UNKNOWN
    assert refusal(client.commands, BEGIN) == UNKNOWN


def test_a_reader_reads_what_it_may_and_nothing_else(connect):
    writer = connect("writer", group="")
    publish(writer, "clicks", b"x")
    reader = connect("reader")
    assert list(reader("ListTopics").topics) == ["clicks"]
    assert len(reader("QueryRoute", topics=["clicks"]).partitions) == 2
    stores = [pb.Store(topic="clicks", broker_id=broker) for broker in (1, 2)]
    ends = [one.bounds.latest for one in reader("QueryBounds", stores=stores).answers]
    found = [
        event.batch.data
        for broker, end in enumerate(ends, 1)
        if end
        for event in reader("ReadRange", partition=place("clicks", broker), end=end)
    ]
    assert found
    hidden = place("hidden")
    refused = {
        "QueryRoute": {"topics": ["clicks", "hidden"]},
        "CheckTopic": {"topic": "hidden"},
        "QueryBounds": {"stores": [pb.Store(topic="hidden", broker_id=1)]},
        "QueryFirstReadable": {"begins": [{"partition": hidden}]},
        "QueryGroupPositions": {"partitions": [hidden]},
        "QueryStoredOffsets": {"topics": ["hidden"]},
        "ResetOffsets": {"positions": [{"partition": hidden}]},
        "ReadRange": {"partition": hidden, "end": 28},
        "AttachPartitions": {"partitions": [{"partition": hidden}]},
        "PublishStream": {"batch": batch_to("clicks", b"x")},
        "ListSessions": {},
    }
    assert {name: refusal(reader, name, **fields) for name, fields in refused.items()} == dict.fromkeys(
        refused, FORBIDDEN
    )
    assert refusal(reader, "CheckTopic", topic="clicks", publishable=True) == FORBIDDEN


def test_a_writer_publishes_to_what_it_may_and_reads_nothing(connect):
    writer = connect("writer", group="")
    good, bad = batch("clicks"), batch("hidden", number=2)
    answers = writer.commands(BEGIN, good)
    assert sum(receipt.count for receipt in answers[-1].receipts) == 1
    assert refusal(writer.commands, BEGIN, good, bad) == FORBIDDEN
    assert refusal(publish, writer, "hidden", b"x") == FORBIDDEN
    assert refusal(writer, "ReadRange", partition=place("clicks"), end=28) == FORBIDDEN


def test_a_group_is_used_by_those_who_may(connect):
    reader = connect("reader")
    assert refusal(reader.open, group="others") == FORBIDDEN
    reader.open(group="reader", reader_groups=["others"])
    assert refusal(reader, "ReadRange", partition=place("clicks"), end=28) == FORBIDDEN
    assert refusal(reader, "QueryStoredOffsets", group="others") == FORBIDDEN
    # Without one, it is the gateway's own.
    reader.open(group="")
    assert refusal(reader, "QueryGroupPositions", partitions=[place("clicks")]) == FORBIDDEN
    assert refusal(reader, "QueryBounds", stores=[pb.Store(topic="clicks", broker_id=1)]) == FORBIDDEN


def pages(client, name):
    """All pages of a list, of one item each."""
    token, parts = "", []
    while token or not parts:
        parts.append(client(name, page_size=1, page_token=token))
        token = parts[-1].next_page_token
    return parts


@pytest.mark.parametrize(
    ("name", "items", "hidden", "shown"),
    [
        ("ListTopics", "topics", "hidden", "clicks"),
        ("ListGroups", "groups", "secret_plan", "reader_z"),
        ("QueryStoredOffsets", "known", "secret_plan", "reader_z"),
    ],
)
def test_pages_name_nothing_that_a_client_may_not_see(connect, name, items, hidden, shown):
    operator, reader = connect("operator", group="secret_plan"), connect("reader", group="reader_z")
    for client in (operator, reader):
        client("AttachPartitions", partitions=[{"partition": place("clicks", 2), "offset": 0}])
    wait_until(lambda: all(text in str(pages(operator, name)) for text in (hidden, shown)), 20)
    seen = pages(reader, name)
    assert hidden not in str(seen)
    assert shown in str(seen)
    assert [len(getattr(part, items)) for part in seen] == [1] * len(seen)


def test_a_group_tells_a_client_only_of_topics_that_it_may_see(connect, upstream, monkeypatch):
    monkeypatch.setattr("tubemq_spark.gateway.control._FRESH_S", -1.0)
    operator, reader = connect("operator", group="reader_of_both"), connect("reader", group="reader_of_both")
    wanted = [{"partition": place(topic), "offset": 0} for topic in ("clicks", "hidden")]
    operator.open(group="reader_of_both", heartbeat_period_ms=1_000)
    operator("AttachPartitions", partitions=wanted)
    forbidden = {"consumeEnable": "false", "disableCsmRsn": "too slow"}
    make = "admin_add_group_csmctrl_info"
    change_at_master(upstream, make, groupName="reader_of_both", topicName="hidden", **forbidden)
    wait_until(lambda: len(operator("ListMembers").members[0].partitions) == len(wanted), 20)
    for name in ("ListGroups", "ListMembers"):
        assert "hidden" in str(operator(name))
        assert "clicks" in str(reader(name))
        assert "hidden" not in str(reader(name))
    assert [len(one.partitions) for one in reader("ListMembers").members] == [1]


def test_offsets_of_a_group_are_told_of_topics_that_a_client_may_see(connect):
    operator, reader = connect("operator", group="reader_of_hidden"), connect("reader", group="reader_z")
    operator("AttachPartitions", partitions=[{"partition": place("hidden"), "offset": 0}])
    reader("AttachPartitions", partitions=[{"partition": place("clicks", 2), "offset": 0}])
    name = "QueryStoredOffsets"
    wait_until(lambda: all(topic in str(pages(operator, name)) for topic in ("hidden", "clicks")), 20)
    assert "hidden" not in str(pages(reader, name))
    assert "clicks" in str(pages(reader, name))


def test_groups_that_a_broker_cannot_tell_of_are_named_to_those_only_who_may_see_all(connect, monkeypatch):
    def refuse(*_):
        raise AdminError("TUBEMQ_ADMIN_REFUSED", server="b", method="m", code=400, reason="of secret_plan")

    monkeypatch.setattr(BrokerAdmin, "booked_groups", lambda _: ["secret_plan"])
    monkeypatch.setattr(BrokerAdmin, "group_places", refuse)
    failures = connect("reader")("QueryStoredOffsets").failures
    assert len(failures) == 2
    assert "TUBEMQ_GROUPS_NOT_TOLD" in str(failures)
    assert "secret_plan" not in str(failures)
    assert "secret_plan" in str(connect("operator", group="ops")("QueryStoredOffsets").failures)


def test_a_client_that_only_publishes_needs_no_reader_groups(connect, change):
    change(policy_text().replace('write = ["clicks"]', 'write = ["clicks"]\ngroup = ["tubemq_spark"]'))
    writer = connect("writer", group="tubemq_spark")
    assert writer("PublishStream", batch=batch_to("clicks", b"x")).receipts


def test_a_client_can_use_neither_session_nor_id_of_another_client(connect):
    connect("reader", client_id="mine")
    other = connect(client_id="mine", token=f"Bearer {TOKENS['operator']}")
    other.session.epoch = 1
    assert refusal(other, "Heartbeat") == NO_SESSION
    assert refusal(other, "ReadRange", partition=place("clicks"), end=28) == NO_SESSION
    assert refusal(other.commands, BEGIN) == NO_SESSION
    other.session.epoch = 2
    assert refusal(other.open, group="ops") == ("ALREADY_EXISTS", "TUBEMQ_SESSION_TAKEN")


def test_the_same_client_of_the_policy_takes_its_id_over_with_another_secret(connect):
    older = connect("reader", client_id="restarted")
    newer = connect(client_id="restarted", token=f"Bearer {TOKENS['reader']}")
    newer.session.epoch, newer.session.secret = 2, b"of the process that was restarted"
    newer.open(group="reader")
    assert refusal(older, "Heartbeat") == FENCED
    assert newer("Heartbeat").gateway


def test_operators_see_all_sessions(connect):
    connect("reader")
    listed = connect("operator", group="ops")("ListSessions").sessions
    assert {"client of reader", "client of operator"} <= {one.client_id for one in listed}


@pytest.fixture
def change(served, files):
    """Writes the policy, and returns when the gateway has looked at it."""
    policy = files[2]

    def change(text):
        new = policy.with_suffix(".new")
        new.write_text(text)
        new.replace(policy)  # half a file would be a failure of its own
        guard = served.server._calls.guard
        wait_until(lambda: guard._last_look == text.encode())

    yield change
    change(policy_text())


def test_a_policy_that_has_changed_counts_as_soon_as_it_was_looked_at(served, connect, change, caplog):
    caplog.set_level(logging.INFO, "tubemq_spark.gateway")
    reader = connect("reader")
    writer = connect("writer", group="")
    change("[[clients")
    assert list(reader("ListTopics").topics) == ["clicks"]
    wait_until(lambda: any("used as it was before" in one.getMessage() for one in caplog.records))
    wait_until(lambda: "tubemq_gateway_policy_failures_total 1.0" in served.server.metrics.text())
    change(policy_text("reader"))
    assert refusal(reader, "ListTopics") == UNKNOWN
    change(policy_text().replace('write = ["clicks"]', ""))
    assert refusal(publish, writer, "clicks", b"x") == FORBIDDEN


NO_READS = policy_text().replace('read = ["clicks"]', "")
NO_WRITES = policy_text().replace('write = ["clicks"]', "")
WITHOUT = {name: policy_text(name) for name in TOKENS}
RENEWED = {name: policy_text().replace(digest(TOKENS[name]), digest("new token")) for name in TOKENS}


@pytest.mark.parametrize(
    ("who", "begin", "text", "end"),
    [
        ("writer", publishing, NO_WRITES, FORBIDDEN),
        ("writer", publishing, WITHOUT["writer"], UNKNOWN),
        ("reader", consuming, NO_READS, FORBIDDEN),
        ("reader", consuming, WITHOUT["reader"], UNKNOWN),
        ("reader", hearing, WITHOUT["reader"], UNKNOWN),
        ("writer", publishing, RENEWED["writer"], UNKNOWN),
        ("reader", consuming, RENEWED["reader"], UNKNOWN),
        ("reader", hearing, RENEWED["reader"], UNKNOWN),
    ],
    ids=[
        *("publish-right", "publish-client", "consume-right", "consume-client", "events-client"),
        *("publish-token", "consume-token", "events-token"),
    ],
)
def test_a_stream_ends_when_its_client_loses_the_right_to_it(connect, change, who, begin, text, end):
    stream = begin(connect(who, group="reader" if who == "reader" else ""), "clicks")
    change(text)
    assert stream.end() == end


def test_a_session_goes_on_with_a_new_token_and_streams_that_showed_the_old_one_end(connect, change):
    old, new = digest(TOKENS["reader"]), digest("new token")
    both = policy_text().replace(f'"{old}"', f'["{old}", "{new}"]')
    reader = connect("reader")
    change(both)
    stream = hearing(reader)
    reader.shown = (("authorization", "Bearer new token"),)
    assert reader("Heartbeat").gateway
    change(RENEWED["reader"])
    assert stream.end() == UNKNOWN
    assert reader("Heartbeat").gateway
    reader.shown = (("authorization", f"Bearer {TOKENS['reader']}"),)
    assert refusal(reader, "Heartbeat") == UNKNOWN


@pytest.mark.parametrize(
    ("text", "end"), [(NO_READS, FORBIDDEN), (RENEWED["reader"], UNKNOWN)], ids=["right", "token"]
)
def test_a_range_ends_when_its_client_loses_the_right_to_it(connect, change, text, end):
    writer, reader = connect("writer", group=""), connect("reader")
    for _ in range(20):
        publish(writer, "clicks", *[bytes(1 << 19)] * 4)
    latest = reader("QueryBounds", stores=[pb.Store(topic="clicks", broker_id=1)]).answers[0].bounds.latest
    call = reader.begin("ReadRange", partition=place("clicks"), end=latest)
    next(call)
    change(text)
    assert end_of(call) == end


def test_consuming_by_a_stream_needs_what_fetching_needs(connect, change):
    reader = connect("reader")
    consuming(reader, "clicks").break_off()
    change(NO_READS)
    assert refusal(reader, "Fetch") == FORBIDDEN
    begin = pb.ConsumeRequest(begin=pb.ConsumeRequest.Begin())
    assert Stream(reader, "Consume", begin).end() == FORBIDDEN


@pytest.fixture
def upstream(served):
    """The addresses of the server behind the gateway."""
    settings = served.server._settings
    master, web = str(settings.master_servers[0]), str(settings.master_web[0])
    return SimpleNamespace(master=master, master_web=web)


@pytest.fixture
def mutual_tls(files):
    authority, pair, _ = files
    return {"tls_cert": str(pair.cert), "tls_key": str(pair.key), "tls_client_ca": str(authority.cert)}


def test_a_certificate_is_as_good_as_a_token(upstream, files, mutual_tls):
    authority, policy = files[0], files[2].with_name("certificates.toml")
    policy.write_text(policy_text(certificates=True))
    login = {"master_username": "gateway", "master_password": PASSWORD}
    with gateway(upstream, **mutual_tls, **login, policy=str(policy), housekeeping_ms=20) as mutual:
        shown = SecuredClient(mutual.address, authority, pair=authority.issue("a", "shown.example.com"))
        stranger = SecuredClient(mutual.address, authority, pair=authority.issue("b", "b.example.com"))
        shown.open(group="")
        assert set(shown("ListTopics").topics) == {"clicks", "hidden"}
        assert refusal(stranger.open) == UNKNOWN
        stream = hearing(shown)
        renamed = policy_text(certificates=True).replace("shown.example.com", "b.example.com")
        policy.with_name("new.toml").write_text(renamed)
        policy.with_name("new.toml").replace(policy)
        assert stream.end() == UNKNOWN
        stranger.open(group="")
        shown.channel.close()
        stranger.channel.close()


def test_without_a_policy_a_session_is_bound_to_the_certificate_that_opened_it(upstream, files, mutual_tls):
    with gateway(upstream, **mutual_tls) as mutual, contextlib.ExitStack() as stack:

        def client(name):
            pair = files[0].issue(name, f"{name}.example.com")
            return stack.enter_context(SecuredClient(mutual.address, files[0], "mine", pair=pair))

        owner, renewed, thief = client("owner"), client("owner"), client("thief")
        owner.open(group="")
        # It has learnt the secret all the same.
        assert refusal(thief, "Heartbeat") == NO_SESSION
        thief.session.epoch = 2
        assert refusal(thief.open) == ("ALREADY_EXISTS", "TUBEMQ_SESSION_TAKEN")
        assert renewed("Heartbeat").gateway == owner("Heartbeat").gateway


def test_a_query_shows_its_token_and_is_told_what_it_may_not(served, files):
    """The client of Spark's source and sink, by every kind of call."""
    tls = TlsConfig(str(files[0].cert))
    config = ClientConfig((), "reader", tls=tls, register_attempts=1)
    addresses = (Endpoint.parse(served.address),)

    def cluster(token, **changes):
        changed = dataclasses.replace(config, **changes)
        return open_cluster(ClusterConfig(changed, addresses, gateway_token=token).validate())

    reader = cluster(TOKENS["reader"])
    assert set(reader.topics()) == {"clicks"}
    with pytest.raises(GatewayError, match=r"TUBEMQ_GATEWAY_FORBIDDEN.*reader.*see hidden"):
        reader.layout(["hidden"])
    with (
        pytest.raises(GatewayError, match=r"TUBEMQ_GATEWAY_FORBIDDEN.*reader.*publish to clicks"),
        reader.sender() as sender,
    ):
        sender.send_batch(SendBatch.of("clicks", [b"x"]))
    with pytest.raises(GatewayError, match=r"TUBEMQ_GATEWAY_LOGIN") as caught:
        cluster("wrong token").topics()
    assert "wrong token" not in str(caught.value)


def test_no_client_and_no_page_sees_how_the_gateway_logs_in(served, connect, caplog):
    caplog.set_level(logging.DEBUG, "tubemq_spark")
    operator = connect("operator", group="ops")
    seen = [str(operator(name)) for name in ("DescribeGateway", "ListSessions", "Heartbeat")]
    for path in ("", "metrics"):
        with urllib.request.urlopen(f"http://{served.server.metrics_address}/{path}", timeout=10) as answer:
            seen.append(answer.read().decode())
    settings = served.server._settings
    seen += [repr(settings), str(settings.shown()), *(one.getMessage() for one in caplog.records)]
    assert len(seen) > 6
    assert not [text for text in seen if PASSWORD in text or TOKENS["operator"] in text]
