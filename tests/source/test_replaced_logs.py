"""Logs that are replaced under a query: topics created again, data deleted or restored, another cluster."""

import contextlib
import itertools
import json
import random
import shutil

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from testkit.examples import examples
from tests.cli.stored_checkpoint import store_checkpoint
from tests.source import query as driving
from tubemq_spark.cli import main as cli
from tubemq_spark.client import TubeMQClient
from tubemq_spark.client.remote.gateways import close_process_gateways
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import DataLossError, TubeMQTimeoutError
from tubemq_spark.gateway.process import BackgroundGateway
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint
from tubemq_spark.offsets.ledger import observations_of
from tubemq_spark.offsets.loss import Loss
from tubemq_spark.offsets.source_offset import SourceOffset
from tubemq_spark.source import layout_cache, marks

ALL = ReadAllAvailable()
OLD, LATER = 60, 40
"""How many messages there are before a backup, and after it."""


@pytest.fixture
def world(tmp_path, request):
    """A server; its topic has one store with one partition unless a test says otherwise."""
    with World(tmp_path, shape=getattr(request, "param", (1, 1))) as world:
        yield world


def of_shapes(*shapes):
    """Run a test with topics of so many stores, and so many partitions in each."""
    return pytest.mark.parametrize("world", shapes, indirect=True, ids=lambda shape: f"{shape[0]}x{shape[1]}")


class World(contextlib.AbstractContextManager):
    """A server with a topic, and what can happen to it."""

    def __init__(self, folder, *, shape=(1, 1)):
        self.folder = folder
        self.shape = shape
        self.numbers = itertools.count()
        # Data and index end in different files, so retention leaves entries without data.
        settings = EmbeddedSettings(data_segment_bytes=2_000, index_segment_bytes=28 * 16)
        self.server = EmbeddedTubeMQ(folder / "data", {"demo": shape}, settings=settings)
        self.other = None
        self.masters = self.server.master

    def __exit__(self, *_):
        self.server.close()
        if self.other is not None:
            self.other.close()

    def send(self, count, server=None):
        """Send messages to one partition after the other; return their values."""
        stores, partitions = self.shape
        places = itertools.cycle((1, 10_000 * i + j) for j in range(partitions) for i in range(stores))
        numbers = list(itertools.islice(self.numbers, count))
        values = [b"%d" % number for number in numbers]
        master = (server or self.server).master
        with TubeMQClient.connect(master, group="feed") as client, client.producer() as producer:
            for number, place in zip(numbers, places, strict=False):
                kind = "even" if number % 2 == 0 else "odd"
                producer.send("demo", b"%d" % number, message_type=kind, partition=place)
        return values

    def fill(self):
        """Send messages with a backup in between; return their values."""
        values = self.send(OLD)
        self.restart(lambda: shutil.copytree(self.server.data, self.folder / "backup"))
        return values + self.send(LATER)

    @property
    def losses(self):
        """What is in the ledger."""
        files = (self.folder / "ledger").iterdir()
        return [one.loss for file in files for one in observations_of(file.read_text(), "")]

    def restart(self, meanwhile=lambda: None):
        self.server.close()
        meanwhile()
        self.server = self.server.reopened()

    def created_again(self):
        self.server.close_topic("demo")
        self.server.remove_topic("demo")
        self.server.add_topic("demo", *self.shape)

    def deleted(self):
        self.restart(lambda: shutil.rmtree(self.server.data))
        self.server.add_topic("demo", *self.shape)

    def restored(self):
        def put_back():
            shutil.rmtree(self.server.data)
            shutil.copytree(self.folder / "backup", self.server.data)

        self.restart(put_back)

    def another_cluster(self):
        """The first master of the list does not answer any more, and the second one is of another cluster."""
        self.server.close()
        self.server = EmbeddedTubeMQ(None, {"demo": self.shape})

    def with_another_cluster(self):
        """Name its master too, before there is one of the first cluster that does not answer."""
        self.other = EmbeddedTubeMQ(None, {"demo": self.shape})
        self.masters = f"{self.server.master},{self.other.master}"


REPLACEMENTS = {
    "created again": (World.created_again, 0),
    "data deleted": (World.deleted, 0),
    "restored": (World.restored, OLD),
}
"""How a log is replaced, and how many of its messages are still there."""


class Query(driving.Query):
    """A stream of a world's topic."""

    def __init__(self, world, checkpoint=None, **options):
        gateways = "tubemq.gateway.servers" in options
        masters = None if gateways else world.masters
        super().__init__(checkpoint, **{"tubemq.master.servers": masters, **options})

    def read(self, start):
        rows = driving.read(self.reader, self.reader.partitions(start, self.checkpoint))
        return [row["value"] for row in rows]

    def next_rows(self):
        """Run micro-batches until one has rows: a look at the brokers is good for a moment."""
        return next(rows for _ in range(1_000) if (rows := self.batch()))

    def available_now(self, limit=None):
        return list(itertools.chain(*super().available_now(limit)))

    @property
    def marks(self):
        return SourceOffset.from_json(self.checkpoint).marks


def run_as_stream(query):
    rows = query.batch()
    return rows + query.batch()


HOW = {"stream": run_as_stream, "AvailableNow": Query.available_now}
COUNTS = {"fewer": -20, "as many": 0, "more": 50}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", REPLACEMENTS)
@pytest.mark.parametrize("count", COUNTS)
@of_shapes((1, 1), (1, 3), (3, 2))
def test_a_log_that_was_replaced_under_a_stopped_query_is_noticed(world, kind, count, how):
    replace, left = REPLACEMENTS[kind]
    query = Query(world)
    before = world.fill()
    assert sorted(HOW[how](query)) == sorted(before)
    replace(world)
    new = world.send(OLD + LATER - left + COUNTS[count])

    with pytest.raises(DataLossError) as noticed:
        HOW[how](Query(world, query.checkpoint))

    lost = "MOVED_BACK" if count == "fewer" else "REPLACED"
    assert noticed.value.condition == f"TUBEMQ_DATA_LOSS.{lost}"
    again = HOW[how](Query(world, query.checkpoint, failondataloss="false"))
    if lost == "REPLACED":
        assert sorted(again) == sorted(before[:left] + new)
    else:
        assert again == [], "it goes on at the end"


def run_until_it_ends(query):
    """Trigger a query that reads nothing more: its broker is away at first."""
    for _ in range(1_000):
        assert query.batch() == []


@pytest.fixture
def any_pause_counts(monkeypatch):
    """A server of this process is replaced faster than any real one."""
    monkeypatch.setattr(marks, "_UNSEEN_SECONDS", 0)
    monkeypatch.setattr(marks, "_UNSEEN_SECONDS_PER_MARK", 0)
    monkeypatch.setattr(layout_cache, "_MAX_AGE_SECONDS", 0)


@pytest.mark.usefixtures("any_pause_counts")
@pytest.mark.parametrize("kind", REPLACEMENTS)
def test_a_log_that_is_replaced_under_a_running_query_is_noticed(world, kind):
    replace, left = REPLACEMENTS[kind]
    query = Query(world)
    before = world.fill()
    assert sorted(query.batch()) == sorted(before)
    replace(world)
    world.send(OLD + LATER - left + 10)

    with pytest.raises(DataLossError, match="REPLACED"):
        query.batch()


def test_a_log_that_was_replaced_is_noticed_through_gateways(world):
    masters, web = Endpoint.parse(world.server.master), Endpoint.parse(world.server.master_web)
    settings = GatewaySettings(
        listen=Endpoint("127.0.0.1", 0), master_servers=(masters,), master_web=(web,)
    ).validate()
    with contextlib.ExitStack() as running:
        way = {"tubemq.gateway.servers": running.enter_context(BackgroundGateway(settings)).address}
        running.callback(close_process_gateways)
        query = Query(world, **way)
        world.send(10)
        query.batch()
        world.created_again()
        new = world.send(15)

        with pytest.raises(DataLossError, match="REPLACED"):
            Query(world, query.checkpoint, **way).batch()
        assert Query(world, query.checkpoint, failondataloss="false", **way).batch() == new


@pytest.mark.usefixtures("any_pause_counts")
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("count", COUNTS)
def test_masters_of_another_cluster_are_noticed(world, how, count):
    world.with_another_cluster()
    query = Query(world)
    world.send(OLD)
    assert len(HOW[how](query)) == OLD
    world.server.close()
    world.send(OLD + COUNTS[count], world.other)

    with pytest.raises(DataLossError) as noticed:
        HOW[how](Query(world, query.checkpoint))
    with pytest.raises(DataLossError) as noticed_by_the_running_one:
        run_until_it_ends(query)

    assert noticed_by_the_running_one.value.condition == noticed.value.condition
    lost = "MOVED_BACK" if count == "fewer" else "REPLACED"
    assert noticed.value.condition == f"TUBEMQ_DATA_LOSS.{lost}"


def test_the_error_says_which_store_and_what_was_there_and_is(world):
    query = Query(world)
    world.send(3)
    query.batch()
    world.created_again()
    world.send(3)

    with pytest.raises(DataLossError) as noticed:
        Query(world, query.checkpoint).batch()

    [mark] = query.marks
    new = Query(world)
    new.batch()
    [now] = new.marks
    text = str(noticed.value)
    assert "demo/1:0 was read up to offset 84" in text
    assert f"demo/1 store 0 had {mark} at offset 56, and now has {now} there" in text
    assert mark != now


def test_a_stream_tells_the_ledger_and_reads_again_from_the_beginning_of_all_stores(tmp_path):
    with World(tmp_path, shape=(3, 1)) as world:
        query = Query(world)
        world.send(30)
        query.batch()
        assert len(query.marks) == 1
        world.created_again()
        new = world.send(33)

        folder = tmp_path / "ledger"
        again = Query(world, query.checkpoint, failondataloss="false", lossledger=f"file://{folder}")
        start = again.plan()
        assert sorted(again.read(start)) == sorted(new)
        assert sorted(again.read(start)) == sorted(new), "a replay reads the same"
        assert {loss.partition.partition_id: (loss.start, loss.end) for loss in world.losses} == {
            0: (280, 280),
            10_000: (280, 280),
            20_000: (280, 280),
        }
        more = world.send(5)
        assert sorted(again.next_rows()) == sorted(more)


def test_a_planned_batch_of_a_replaced_log_is_lost_and_not_read_from_the_new_one(world):
    query = Query(world)
    world.send(50)
    query.batch()
    world.send(10)
    start = query.plan()
    world.created_again()
    new = world.send(70)

    with pytest.raises(DataLossError, match="REPLACED"):
        Query(world, query.checkpoint).read(start)
    again = Query(world, query.checkpoint, failondataloss="false")
    assert again.read(start) == []
    assert again.batch() == new


def test_a_run_that_tolerates_it_reads_all_of_the_new_log_in_limited_batches(world):
    query = Query(world)
    world.send(20)
    query.available_now()
    world.created_again()
    new = world.send(30)

    again = Query(world, query.checkpoint, failondataloss="false")

    assert again.available_now(ReadMaxRows(7)) == new


def test_a_query_of_some_types_of_messages_is_told_by_messages_of_other_types(world):
    query = Query(world, messagetypes="even")
    world.send(10)
    assert len(query.batch()) == 5
    world.created_again()
    world.send(10)

    with pytest.raises(DataLossError, match="REPLACED"):
        Query(world, query.checkpoint, messagetypes="even").batch()


def batch_read(world, checkpoint, **options):
    masters = {"tubemq.master.servers": world.masters}
    rows = driving.batch_rows(startingoffsets=json.dumps(checkpoint), **masters, **options)
    return [row["value"] for row in rows]


def stream_read(world, checkpoint, **options):
    return Query(world, startingoffsets=json.dumps(checkpoint), **options).batch()


@pytest.mark.parametrize("read", [batch_read, stream_read])
def test_offsets_of_a_query_that_another_one_begins_at_are_looked_at(world, read):
    query = Query(world)
    world.send(10)
    query.batch()
    more = world.send(2)
    assert read(world, query.checkpoint) == more
    world.created_again()
    new = world.send(15)

    with pytest.raises(DataLossError, match="REPLACED"):
        read(world, query.checkpoint)
    tolerant = {"failondataloss": "false", "lossledger": f"file://{world.folder}/ledger"}
    assert read(world, query.checkpoint, **tolerant) == new
    assert [str(loss) for loss in world.losses] == ["REPLACED demo/1:0 [280, 280)"]


def test_a_log_that_moved_back_and_grew_again_is_not_told_of_twice(world, any_pause_counts):
    query = Query(world, failondataloss="false", lossledger=f"file://{world.folder}/ledger")
    world.send(30)
    query.batch()
    [before] = query.marks
    world.created_again()
    world.send(10)
    assert query.batch() == [], "it goes on at the end"
    new = world.send(30)

    assert query.next_rows() == new

    assert before not in query.marks
    assert [loss.loss for loss in world.losses] == [Loss.MOVED_BACK]


@of_shapes((1, 2))
def test_a_record_of_another_partition_of_the_store_is_another_record(world):
    query = Query(world)
    world.send(2)
    query.batch()
    [mark] = query.marks
    assert mark.partition.partition_id == 1
    world.created_again()
    with TubeMQClient.connect(world.server.master, group="feed") as client, client.producer() as producer:
        for _ in range(3):
            producer.send("demo", b"of the other one", partition=(1, 0))

    with pytest.raises(DataLossError, match=r"now has message \d+ of partition 1:0 "):
        Query(world, query.checkpoint).batch()


def test_messages_that_a_crash_took_are_told_of_though_their_offsets_are_used_again(world):
    query = Query(world)
    before = world.send(20)
    query.batch()
    world.server.faults.lose_messages("demo", 5)
    new = world.send(8)

    with pytest.raises(DataLossError, match="REPLACED"):
        Query(world, query.checkpoint).batch()
    again = Query(world, query.checkpoint, failondataloss="false")
    assert again.batch() == before[:15] + new


def refuse(monkeypatch, numbers=(), topic=None):
    """Make the reads of records with these numbers, counted from 0, or of a topic, time out.

    Return how long each read was to wait, in milliseconds.
    """
    read, asked, patience = marks.record_at, itertools.count(), []

    def record_at(cluster, layout, offset, partitions, patience_ms):
        patience.append(patience_ms)
        if next(asked) in numbers or partitions[0].topic == topic:
            raise TubeMQTimeoutError("TUBEMQ_TIMEOUT", endpoint="there", timeout_ms=1, during="a test")
        return read(cluster, layout, offset, partitions, patience_ms)

    monkeypatch.setattr(marks, "record_at", record_at)
    return patience


def test_a_log_that_was_replaced_begins_again_once_though_it_has_no_mark(
    world, monkeypatch, any_pause_counts
):
    query = Query(world, failondataloss="false")
    world.send(10)
    query.batch()
    world.created_again()
    new = world.send(15)
    refuse(monkeypatch, {1})  # the look is answered, and the mark that is to be taken then is not

    assert query.next_rows() == new
    assert query.marks == ()
    more = world.send(5)
    assert query.next_rows() == more


def test_a_broker_that_does_not_let_a_mark_be_read_is_waited_for(world, monkeypatch):
    """Nothing is planned behind a mark that was not looked at."""
    query = Query(world)
    world.send(10)
    query.batch()
    new = world.send(5)
    refuse(monkeypatch, {0, 1})
    monkeypatch.setattr(marks, "_PAUSE_SECONDS", 0)
    again = Query(world, query.checkpoint)

    assert again.batch() == []
    assert again.checkpoint == query.checkpoint
    assert again.batch() == []
    assert again.batch() == new


def test_a_topic_whose_mark_cannot_be_read_holds_up_no_other(world, monkeypatch):
    world.server.add_topic("other", 1, 1)
    both = {"subscribe": "demo,other"}
    query = Query(world, **both)

    def send():
        with TubeMQClient.connect(world.server.master, group="feed") as client, client.producer() as producer:
            for topic in ("demo", "other"):
                producer.send(topic, topic.encode())

    send()
    assert sorted(query.batch()) == [b"demo", b"other"]
    send()
    patience = refuse(monkeypatch, topic="demo")

    assert Query(world, query.checkpoint, **both).batch() == [b"other"]
    assert max(patience) < 1_000, "nothing was waited for longer than a trigger waits"


def test_the_lag_of_a_checkpoint_tells_of_a_log_that_was_replaced(world, capsys):
    query = Query(world)
    world.send(10)
    query.batch()
    world.created_again()
    world.send(15)
    folder = store_checkpoint(world.folder / "checkpoint", (SourceOffset.from_json(query.checkpoint),))

    assert cli.main(["lag", "--checkpoint", str(folder), "--master", world.masters, "--json"]) == 1

    said = capsys.readouterr()
    [row] = json.loads(said.out)["partitions"]
    assert (row["offset"], row["lag"]) == (280, 15)
    assert "demo/1:0: [TUBEMQ_DATA_LOSS.REPLACED]" in said.err


def disturb(world, choose):
    """Restart the server, expire records, or do nothing."""
    kind = choose.choice(["restart", "expire", "restart", "nothing"])
    if kind == "restart":
        world.restart()
    elif kind == "expire":
        world.server.apply_retention("demo", older_than_ms=choose.choice([0, 50]))


@pytest.mark.parametrize("seed", range(examples(2, 10)))
@of_shapes((1, 1), (2, 2))
def test_a_log_that_is_not_replaced_is_never_told_to_be(world, seed, any_pause_counts):
    """Whatever is restarted, expires, or is read in parts."""
    choose = random.Random(f"{seed} {world.shape}")
    lenient = {"failondataloss": "false", "lossledger": f"file://{world.folder}/ledger"}
    query = Query(world, **lenient)
    for _ in range(20):
        world.send(choose.choice([0, 1, 7, 30]))
        disturb(world, choose)
        if choose.random() < 0.5:
            query = Query(world, query.checkpoint, **lenient)
        limit = choose.choice([ALL, ReadMaxRows(5)])
        run = choose.choice([Query.batch, Query.available_now])
        run(query, limit)
    assert Loss.REPLACED not in {loss.loss for loss in world.losses}
