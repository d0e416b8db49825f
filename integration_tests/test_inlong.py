"""What InLong packs is unpacked as InLong does it, through Spark, in batches and in streams."""

import random
from collections.abc import Iterable

import pyarrow as pa
import pytest
from pyspark.sql.functions import inline

from integration_tests.rig.messages import Sample, assert_same_rows, produce
from integration_tests.rig.queries import Collected, read, read_stream, refusal, run
from testkit.inlong_msg import binary, container, in_version_4, pairs, snappy
from tubemq_spark.errors import InLongMsgError
from tubemq_spark.functions import parse_inlong_msg, register_functions
from tubemq_spark.protocol.inlong_msg import parse_attributes, unpack

ROUNDS = 12
DAMAGED = 150
CREATED_MS = 1_700_000_000_123
JUNK = b"no container"

Rows = list[tuple[bytes, dict[str, str | None]]]


def decompress(data, size):
    try:
        return pa.decompress(data, size, "snappy", asbytes=True)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error)) from error


def ours(body: bytes) -> dict[str, list[bytes]]:
    """Return what our decoder makes of a body, as the Java decoder gives it."""
    found: dict[str, list[bytes]] = {}
    for section in unpack(body, decompress).sections:
        found.setdefault(section.attributes, []).extend(
            bytes(section.data[start:end]) for start, end in zip(section.starts, section.ends, strict=True)
        )
    return found


def parsed(sections: dict[str, list[bytes]]) -> Iterable[tuple[bytes, frozenset[tuple[str, str | None]]]]:
    """Return messages with their attributes, whose order is not kept by version 4 in Java."""
    return [
        (message, frozenset(parse_attributes(text).items()))
        for text, messages in sections.items()
        for message in messages
    ]


def some_bodies(chance: random.Random, count: int) -> list[bytes]:
    """Return messages; the Java decoder stops at one of length 0 that has attributes of its own."""
    return [chance.randbytes(chance.choice([1, 5, 300])) for _ in range(count)]


def some_sections(chance: random.Random) -> list[tuple[str, list[tuple[bytes, bytes]]]]:
    """Return what to encode; of sections with equal attributes the Java decoder keeps the last."""
    return [
        (
            f"groupId=g{number}&streamId=中\U0001f600\0&dt={CREATED_MS}" if number else "",
            [(body, b"n=%d" % chance.randrange(2)) for body in some_bodies(chance, chance.randrange(1, 8))],
        )
        for number in range(chance.randrange(1, 5))
    ]


def some_binary(chance: random.Random, *, own: bool, named: bool, compressed: bool) -> bytes:
    messages = [(body, b"n=%d" % chance.randrange(2)) for body in some_bodies(chance, 6)]
    return binary(
        messages,
        "groupId=g&streamId=s&x=y" if named else "x=y",
        own=own,
        numbers=None if named else (chance.randrange(-9, 999), 7),
        seconds=CREATED_MS // 1000,
        compress=snappy if compressed else None,
    )


@pytest.fixture(scope="module")
def official(java_client):
    return java_client.inlong_msgs()


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_what_the_official_encoder_packs_is_unpacked(official, version, compress):
    chance = random.Random(version)
    for _ in range(ROUNDS):
        sections = some_sections(chance)
        added = [
            (text, pairs([(message, own)]) if version == 3 else message)
            for text, messages in sections
            for message, own in messages
        ]
        body = official.build(version, added, CREATED_MS, compress=compress)

        taken = unpack(body, decompress)
        assert (taken.version, taken.time_ms) == (version, CREATED_MS)
        expected: dict[str, list[bytes]] = {}
        for text, messages in sections:
            for message, own in messages:
                key = f"{text}&{own.decode()}".removeprefix("&") if version == 3 else text
                expected.setdefault(key, []).append(message)
        assert ours(body) == expected


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_what_the_official_encoder_packs_as_version_4_is_unpacked(official, own, compress):
    chance = random.Random(own)
    for number in range(ROUNDS):
        message = some_binary(chance, own=own, named=number % 2 == 0, compressed=number % 3 == 0)
        body = official.build_binary(message, compress=compress)
        taken, java = unpack(body, decompress), official.parse(body)
        assert (
            (taken.version, taken.time_ms)
            == (java.version, java.created_ms)
            == (4, CREATED_MS // 1000 * 1000)
        )
        assert_same_rows(parsed(ours(body)), parsed(java.sections))
        assert sum(len(section.starts) for section in taken.sections) == 6


def own_containers(chance: random.Random) -> list[bytes]:
    """Return bodies of every version, compressed and not."""
    made = []
    for compress in (None, snappy):
        made += [container(version, some_sections(chance), CREATED_MS, compress) for version in range(4)]
        made += [
            in_version_4(some_binary(chance, own=own, named=own, compressed=compress is not None))
            for own in (False, True)
        ]
    return made


def test_both_decoders_take_the_same_from_every_version(official):
    chance = random.Random(5)
    for body in own_containers(chance):
        java = official.parse(body)
        taken = unpack(body, decompress)
        assert taken.version == java.version
        assert (-1 if taken.time_ms is None else taken.time_ms) == java.created_ms
        assert_same_rows(parsed(ours(body)), parsed(java.sections))


def test_what_is_taken_of_damaged_bodies_is_what_the_official_decoder_takes(official):
    """Ours refuses more: the official one passes over what it does not understand."""
    chance = random.Random(6)
    refused = compared = 0
    while refused + compared < DAMAGED:
        for body in own_containers(chance):
            damaged = bytearray(body)
            damaged[chance.randrange(2, len(body) - 2)] ^= 1 << chance.randrange(8)
            try:
                taken = unpack(bytes(damaged), decompress)
            except InLongMsgError:
                refused += 1
                continue
            if is_beyond_the_official_decoder(taken):
                continue
            compared += 1
            java = official.parse(bytes(damaged))
            assert_same_rows(parsed(ours(bytes(damaged))), parsed(java.sections))
    assert refused > DAMAGED // 10
    assert compared > DAMAGED // 10


def is_beyond_the_official_decoder(taken) -> bool:
    """Whether a body has what that decoder stops at, forgets or throws at, or what Py4J cannot carry."""
    texts = [section.attributes for section in taken.sections]
    empty = any(start == end for section in taken.sections for start, end in zip(*section[2:], strict=True))
    # Of equal attributes the last section counts there; a key without a value, or twice, is an exception.
    odd = any(item.count("=") != 1 for text in texts for item in text.split("&")) or any(
        len(parse_attributes(text)) != len(text.split("&")) for text in texts
    )
    repeated = taken.version < 3 and len(set(texts)) < len(texts)
    halved = any("\ufffd" in text for text in texts)
    return empty or repeated or halved or (taken.version == 4 and odd)


def sent(numbers: range) -> list[tuple[bytes, list[int]]]:
    """Return bodies of every version in turn, and the numbers that are in each."""
    made = []
    left = list(numbers)
    while left:
        size = len(made) % 7
        inside, left = left[:size], left[size:]
        messages = [(b"%d" % number, b"n=%d" % number) for number in inside]
        compress = snappy if len(made) % 2 else None
        version = len(made) % 5
        if version == 4:
            body = in_version_4(binary(messages, "m=1", own=True, compress=compress, seconds=9))
        else:
            body = container(version, [("m=1", messages[:2]), ("m=2", messages[2:])], 9000, compress)
        made.append((body, inside))
    return made


def test_rows_of_a_batch(spark, server):
    topic = server.fresh_topic("1x1")
    bodies = [(JUNK, []), *sent(range(2_000))]
    produce(
        server.master,
        topic,
        [Sample(body, message_type=f"t{n % 2}") for n, (body, _) in enumerate(bodies)],
    )

    frame = read(spark, server, topic, payload="inlong")
    corrupt, *rows = frame.collect()
    assert corrupt.asDict() | {"messageId": 0} == {
        "value": None,
        "topic": topic,
        "brokerId": 1,
        "partition": 0,
        "offset": 0,
        "messageId": 0,
        "timestamp": None,
        "messageType": "t0",
        "inlongAttributes": None,
        "inlongTime": None,
        "inlongIndex": 0,
        "_corrupt_record": bytearray(JUNK),
    }
    places = [
        (28 * n, index, number) for n, (_, inside) in enumerate(bodies) for index, number in enumerate(inside)
    ]
    assert [(row.offset, row.inlongIndex, int(row.value)) for row in rows] == places
    assert {row.inlongAttributes["m"] for row in rows} == {"1", "2"}
    assert {row.inlongTime and row.inlongTime.timestamp() for row in rows} == {None, 9.0}
    assert all(row._corrupt_record is None for row in rows)

    dropped = read(spark, server, topic, payload="inlong", mode="DROPMALFORMED", minPartitions="3")
    assert_same_rows([int(row.value) for row in dropped.select("value").collect()], range(2_000))
    assert read(spark, server, topic).count() == len(bodies)
    failing = read(spark, server, topic, payload="inlong", mode="FAILFAST")
    condition, sentence = refusal(failing.collect)
    assert condition == "TUBEMQ_INLONG_MALFORMED"
    assert f"in {topic}/1:0 is not a sound InLongMsg: it begins with 6e6f" in sentence


class FailingOnce(Collected):
    """A sink whose second micro-batch fails when it has all rows."""

    def __call__(self, frame, batch):
        super().__call__(frame, batch)
        if [number for number, _ in self.batches] == [0, 1]:
            raise RuntimeError("wanted")


@pytest.mark.any_server
def test_rows_of_a_stream_are_the_same_again(spark, server, tmp_path):
    """Limits count bodies; a micro-batch that failed comes again with the same rows, and nothing else."""
    topic = server.fresh_topic("1x1")
    bodies = sent(range(1_000))
    produce(server.master, topic, [Sample(body) for body, _ in bodies])
    limit = 100
    options = {"payload": "inlong", "mode": "FAILFAST", "maxOffsetsPerTrigger": str(limit)}
    sink = FailingOnce()

    with pytest.raises(Exception, match="wanted"):
        run(read_stream(spark, server, topic, **options), sink, tmp_path)
    run(read_stream(spark, server, topic, **options), sink, tmp_path)

    expected = [
        [number for _, inside in bodies[start : start + limit] for number in inside]
        for start in range(0, len(bodies), limit)
    ]
    assert [number for number, _ in sink.batches] == [0, 1, *range(1, len(expected))]
    assert [rows for _, rows in sink.batches] == [expected[0], expected[1], *expected[1:]]


@pytest.mark.any_server
def test_the_function_in_a_query_in_sql_and_in_a_stream(spark, server, tmp_path):
    topic = server.fresh_topic("1x1")
    bodies = [(JUNK, []), *sent(range(500))]
    produce(server.master, topic, [Sample(body) for body, _ in bodies])
    frame = read(spark, server, topic)

    rows = frame.select("offset", inline(parse_inlong_msg("value"))).collect()
    unpacked = read(spark, server, topic, payload="inlong").drop("topic", "brokerId", "partition")
    assert rows == unpacked.select(*rows[0].__fields__).collect()
    frame.createOrReplaceTempView("inlong_bodies")
    register_functions(spark)
    query = (
        "SELECT cast(cast(m.value AS string) AS int) AS number FROM inlong_bodies"
        " LATERAL VIEW inline(parse_inlong_msg(value, 'DROPMALFORMED')) m"
    )
    assert [row.number for row in spark.sql(query).collect()] == list(range(500))
    assert spark.sql("SELECT parse_inlong_msg(cast(NULL AS binary))").first()[0] is None
    condition, _ = refusal(frame.select(parse_inlong_msg("value", "FAILFAST")).collect)
    assert condition == "TUBEMQ_INLONG_MALFORMED"

    sink = Collected()
    stream = read_stream(spark, server, topic, maxOffsetsPerTrigger="50")
    run(stream.select(inline(parse_inlong_msg("value", "DROPMALFORMED"))), sink, tmp_path)
    assert sink.rows == list(range(500))


def test_what_the_official_clients_pack_and_send_is_read(spark, server, java_client, official):
    """InLong's encoder and the Java producer."""
    topic = server.fresh_topic("1x1")
    numbers = range(60)
    bodies = [
        official.build(
            version, [(f"m={n % 2}", b"%d" % n) for n in numbers[start : start + 20]], 9, compress=True
        )
        for version, start in ((1, 0), (2, 20))
    ]
    third = [("m=0", pairs([(b"%d" % n, b"n=%d" % n)])) for n in numbers[40:]]
    bodies.append(official.build(3, third, 9, compress=False))
    with java_client.producer(server.master, topic) as producer:
        for body in bodies:
            producer.send(topic, body)
    frame = (
        spark.read.format("tubemq")
        .options(**server.options(subscribe=topic, payload="inlong", mode="FAILFAST"))
        .schema("value binary, inlongAttributes map<string,string>")
        .load()
    )
    rows = frame.collect()
    assert_same_rows([int(row.value) for row in rows], numbers)
    assert all(row.inlongAttributes["m"] == str(int(row.value) % 2) for row in rows if int(row.value) < 40)
    assert all(row.inlongAttributes["n"] == str(int(row.value)) for row in rows if int(row.value) >= 40)
