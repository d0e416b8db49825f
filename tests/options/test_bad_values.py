"""Every wrong value of an option is refused before anything runs, in one sentence that says what is expected.

The sentences are here in full, also those about wrong combinations: read one aloud when you change it. What
is wrong inside positions, times and partitions is in ``tests/offsets``. What only a topic shows (offsets
beyond its log, partitions that do not exist) is refused when a read is planned:
``tests/source/test_bad_offsets.py``.
"""

import dataclasses

import pytest

from tests.cases import in_one_test
from tubemq_spark.errors import TubeMQError
from tubemq_spark.options import OptionSet
from tubemq_spark.options.rules import REFUSED
from tubemq_spark.options.table import NAMED
from tubemq_spark.options.values import Mode

BATCH, STREAM, WRITE = Mode.BATCH_READ, Mode.STREAM_READ, Mode.WRITE
MASTERS = {"tubemq.master.servers": "master1:8715"}
SUBSCRIBING = ("subscribe", "subscribePattern", "assign")

NAME = "2 to 64 letters, digits or _, the first a letter"
GROUP = "2 to 1024 letters, digits, _ or -, the first a letter"
POSITIVE_LONG = "a whole number from 1 to 9223372036854775807"
POSITIVE_INT = "a whole number from 1 to 2147483647"
MS = "a whole number from 1 to 86400000"
SIZE = "a positive number of bytes such as 64m, 1g or 1048576"
TIME = (
    "a time such as 2026-01-31T12:00 or 2026-01-31T12:00+08:00, "
    "or milliseconds since 1970 such as 1769860800000"
)
UNTIL = f"{TIME}, or JSON with offsets, or -1 for latest"
ADDRESSES = "host:port addresses separated by commas"
LOCATION = (
    "an absolute path, or a URI such as file:///path, hdfs://host:port/path, s3://bucket/path, "
    "gs://bucket/path or abfss://container@account.dfs.core.windows.net/path"
)

OFFSETS_EXAMPLE = 'earliest, latest, group or for example {"demo":{"1:0":280,"1:10000":-2}}'
UNTIL_EXAMPLE = 'a time such as 2026-01-31T12:00 or for example {"demo":{"1:0":280,"1:10000":-1}}'
ENDS_EXAMPLE = 'latest or for example {"demo":{"1:0":280,"1:10000":-1}}'
TIMES_EXAMPLE = 'for example {"demo":{"1:0":"2026-01-31T12:00"}}'
ASSIGN_EXAMPLE = 'for example {"demo":["1:0","1:10000"]}'


@dataclasses.dataclass(frozen=True)
class Wrong:
    """Options, and the error they are refused with."""

    mode: Mode
    options: dict[str, str]
    condition: str
    sentence: str

    def __str__(self):
        pairs = ",".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.mode.name.lower()}:{pairs}"[:80]


def value(mode, option, text, expected):
    """A value that is not what an option must be."""
    sentence = f"Option '{option}' is '{text}', but must be {expected}."
    return Wrong(mode, {option: text}, "TUBEMQ_OPTION_VALUE", sentence)


def malformed(mode, option, text, problem, example):
    """Offsets, times or partitions that cannot be understood."""
    seen = f", in {text}" if text else ""
    sentence = f"Option '{option}' cannot be read: {problem}{seen}; write {example}."
    return Wrong(mode, {option: text}, "TUBEMQ_OFFSETS_MALFORMED", sentence)


SECONDS = (
    "is 1795700000, which as milliseconds since 1970 is 1970-01-21, before the year 2000. "
    "Write 1795700000000 if these are seconds"
)


def too_early(mode, option, text, problem):
    """A time in seconds, or one by mistake."""
    sentence = (
        f"Option '{option}' {problem}, or write a time such as 2026-01-31T12:00 or 2026-01-31T12:00+08:00; "
        "0 is the beginning."
    )
    return Wrong(mode, {option: text}, "TUBEMQ_TIME_TOO_EARLY", sentence)


def offsets(text, problem):
    return malformed(STREAM, "startingOffsets", text, problem, OFFSETS_EXAMPLE)


def times(text, problem):
    return malformed(BATCH, "startingOffsetsByTimestamp", text, problem, TIMES_EXAMPLE)


def assign(text, problem):
    return malformed(BATCH, "assign", text, problem, ASSIGN_EXAMPLE)


def in_batch(option, text, edge, whose):
    """The wrong end of the log, for a batch read."""
    sentence = (
        f"Option '{option}' is {edge} for {whose}, which a batch read does not allow; "
        "choose the other end, or offsets."
    )
    return Wrong(BATCH, {option: text}, "TUBEMQ_POSITION_IN_BATCH", sentence)


def in_stream(option, text):
    """An end, for a stream."""
    sentence = (
        f"Option '{option}' is not valid in a streaming read, which has no end; "
        "use the trigger availableNow to stop at what is there now, and its option availableNowUntil to stop "
        "before."
    )
    return Wrong(STREAM, {option: text}, "TUBEMQ_ENDING_IN_STREAM", sentence)


def exclusive(one, other, **values):
    sentence = f"Only one of the options '{one}' and '{other}' can be specified; leave one out."
    return Wrong(BATCH, values, "TUBEMQ_OPTIONS_EXCLUSIVE", sentence)


def needs_group(**values):
    (option,) = values
    sentence = f"Option 'tubemq.group' must be specified, since '{option}' needs it."
    return Wrong(STREAM, values, "TUBEMQ_OPTION_NEEDED", sentence)


def alone(one, other):
    sentence = f"Option '{one}' is given without '{other}'; give both or neither."
    return Wrong(BATCH, {one: "something"}, "TUBEMQ_OPTION_ALONE", sentence)


def of_kafka(mode, option, advice):
    sentence = f"Option '{option}' is one of Spark's Kafka source, and not of this one; {advice}."
    return Wrong(mode, {option: "something"}, "TUBEMQ_OPTION_UNSUPPORTED", sentence)


OF_ALL_CLIENTS = "Kafka client settings have no meaning here; see the options tubemq.*"
NO_TOPICS = "No topics to subscribe to: the value of option 'subscribe' is blank; name at least one topic."

WRONG = [
    # What is read.
    Wrong(BATCH, {"subscribe": ""}, "TUBEMQ_NO_TOPICS", NO_TOPICS),
    Wrong(STREAM, {"subscribe": " , "}, "TUBEMQ_NO_TOPICS", NO_TOPICS),
    value(STREAM, "subscribe", "demo;orders", f"topic names separated by commas, each {NAME}"),
    value(STREAM, "subscribePattern", "demo(", "a regular expression of Python"),
    assign("", "it is blank"),
    assign("demo:0", "it is not JSON"),
    value(BATCH, "assign", '{"my-topic":["1:0"]}', f"JSON with topic names, each {NAME}"),
    exclusive("tubemq.gateway.servers", "tubemq.master.servers", **{"tubemq.gateway.servers": "g1"}),
    exclusive("subscribe", "subscribePattern", subscribe="demo", subscribePattern="demo.*"),
    exclusive("subscribe", "assign", subscribe="demo", assign='{"demo":["1:0"]}'),
    exclusive("subscribePattern", "assign", subscribePattern="demo.*", assign='{"demo":["1:0"]}'),
    value(STREAM, "waitForTopics", "5s", "true or false"),
    # Where it begins.
    offsets("", "it is blank"),
    offsets("begin", "it is not JSON"),
    offsets('{"demo":{"1:0":0,"1:0":28}}', "it names '1:0' twice"),
    Wrong(
        STREAM,
        {"startingOffsets": '{"v":7,"topics":{}}'},
        "TUBEMQ_OFFSETS_VERSION",
        "Option 'startingOffsets' has format version 7, but this release only reads up to version 2; "
        "use the release of tubemq_spark that wrote it, or a newer one.",
    ),
    in_batch("startingOffsets", "latest", "latest", "every partition"),
    in_batch("startingOffsets", '{"demo":{"1:0":-1,"1:1":-2}}', "latest", "demo/1:0"),
    in_batch("startingOffsets", '{"demo":"latest"}', "latest", "topic demo"),
    needs_group(startingOffsets="group"),
    value(BATCH, "startingTimestamp", "-1", TIME),
    value(BATCH, "startingTimestamp", str(2**63), TIME),
    value(BATCH, "startingTimestamp", "2026-02-30", TIME),
    too_early(BATCH, "startingTimestamp", "1795700000", SECONDS),
    too_early(BATCH, "endingTimestamp", "1795700000", SECONDS),
    too_early(STREAM, "availableNowUntil", "1795700000", SECONDS),
    too_early(
        STREAM,
        "startingTimestamp",
        "7",
        "is 7, which as milliseconds since 1970 is 1970-01-01, before the year 2000. Correct the number",
    ),
    too_early(BATCH, "startingOffsetsByTimestamp", '{"demo":{"1:0":1795700000}}', f"for demo/1:0 {SECONDS}"),
    times("", "it is blank"),
    times("earliest", "it is not JSON"),
    value(STREAM, "startingOffsetsByTimestampStrategy", "earliest", "error or latest"),
    # Where it ends.
    in_batch("endingOffsets", "earliest", "earliest", "every partition"),
    in_batch("endingOffsets", '{"demo":{"1:0":-2}}', "earliest", "demo/1:0"),
    in_batch("endingOffsets", '{"demo":"earliest"}', "earliest", "topic demo"),
    value(BATCH, "endingOffsets", "group", "latest or JSON"),
    malformed(BATCH, "endingOffsets", "now", "it is not JSON", ENDS_EXAMPLE),
    value(BATCH, "endingTimestamp", "soon", TIME),
    malformed(
        BATCH,
        "endingOffsetsByTimestamp",
        "{",
        "it is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))",
        TIMES_EXAMPLE,
    ),
    in_stream("endingOffsets", "latest"),
    in_stream("endingOffsets", '{"demo":{"1:0":28}}'),
    in_stream("endingTimestamp", "2026-01-31"),
    in_stream("endingOffsetsByTimestamp", '{"demo":{"1:0":"2026-01-31"}}'),
    value(STREAM, "availableNowUntil", "group", UNTIL),
    value(STREAM, "availableNowUntil", "earliest", UNTIL),
    value(STREAM, "availableNowUntil", '{"demo":{"1:0":-2}}', UNTIL),
    value(STREAM, "availableNowUntil", str(2**63), UNTIL),
    malformed(STREAM, "availableNowUntil", "tomorrow", "it is not JSON", UNTIL_EXAMPLE),
    # How much at a time, and how.
    value(STREAM, "maxOffsetsPerTrigger", "0", POSITIVE_LONG),
    value(STREAM, "maxOffsetsPerTrigger", str(2**63), POSITIVE_LONG),
    value(STREAM, "maxBytesPerTrigger", "0", SIZE),
    value(STREAM, "minOffsetsPerTrigger", "0", POSITIVE_LONG),
    Wrong(
        STREAM,
        {"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "10"},
        "TUBEMQ_MINIMUM_ABOVE_MAXIMUM",
        "Option 'minOffsetsPerTrigger' is 20, which is higher than 'maxOffsetsPerTrigger', 10; "
        "lower the one or raise the other.",
    ),
    value(STREAM, "maxTriggerDelay", "soon", "a time such as 15m, 30s or 500ms"),
    value(BATCH, "minPartitions", "0", POSITIVE_INT),
    value(BATCH, "maxRecordsPerPartition", "0", POSITIVE_LONG),
    value(STREAM, "maxRangesPerTask", "0", POSITIVE_INT),
    value(BATCH, "failOnDataLoss", "maybe", "true or false"),
    value(STREAM, "visibility", "disk", "memory or flushed"),
    value(STREAM, "commitOffsetsToGroup", "sometimes", "true or false"),
    needs_group(commitOffsetsToGroup="true"),
    value(
        BATCH,
        "messageTypes",
        " ,",
        "message types separated by commas, at most 500, each of at most 256 characters without : # @ or =",
    ),
    value(BATCH, "includeAttributes", "1", "true or false"),
    value(BATCH, "timestampSearch", "index", "probe or exact"),
    value(BATCH, "messageTimeZone", "Mars", "the name of a time zone, such as UTC or Asia/Shanghai"),
    value(BATCH, "fetchOffset.numRetries", "0", "a whole number from 1 to 1000"),
    value(BATCH, "fetchOffset.retryIntervalMs", "1s", "a whole number from 0 to 86400000"),
    value(STREAM, "fetchOffset.maxIdleIntervalMs", "0", "a whole number from 20 to 86400000"),
    # How TubeMQ is reached.
    value(BATCH, "tubemq.master.servers", "", ADDRESSES),
    value(BATCH, "tubemq.master.servers", "host:port", ADDRESSES),
    value(STREAM, "tubemq.master.web", "http://", ADDRESSES),
    value(STREAM, "tubemq.gateway.servers", "gateway:0", ADDRESSES),
    value(STREAM, "tubemq.group", "my group", f"a group name: {GROUP}"),
    alone("tubemq.username", "tubemq.password"),
    alone("tubemq.password", "tubemq.username"),
    value(BATCH, "tubemq.username", "", "some text"),
    Wrong(
        BATCH,
        {"tubemq.password": ""},
        "TUBEMQ_OPTION_VALUE",
        "Option 'tubemq.password' is '***', but must be some text.",
    ),
    value(BATCH, "tubemq.rpcTimeoutMs", "10s", MS),
    value(BATCH, "tubemq.connectTimeoutMs", "0", MS),
    value(BATCH, "tubemq.fetchTimeoutMs", "never", MS),
    value(BATCH, "readerGroups", ",", f"group names separated by commas, each {GROUP}"),
    value(BATCH, "readerGroups.size", "257", "a whole number from 1 to 256"),
    exclusive("readerGroups", "readerGroups.size", **{"readerGroups": "r1", "readerGroups.size": "2"}),
    value(BATCH, "view", "tables", "messages, partitions, lag, groups, losses or receipts"),
    value(BATCH, "checkpointLocation", "checkpoint", LOCATION),
    value(STREAM, "lossLedger", "losses", LOCATION),
    value(BATCH, "payload", "json", "raw or inlong"),
    value(STREAM, "mode", "strict", "PERMISSIVE, DROPMALFORMED or FAILFAST"),
    value(BATCH, "tubemq.tls.enabled", "1", "true or false"),
    value(BATCH, "tubemq.tls.caFile", "", "the path of a file"),
    value(STREAM, "tubemq.tls.certFile", "", "the path of a file"),
    value(STREAM, "tubemq.tls.keyFile", "", "the path of a file"),
    Wrong(
        STREAM,
        {"tubemq.gateway.token": ""},
        "TUBEMQ_OPTION_VALUE",
        "Option 'tubemq.gateway.token' is '***', but must be some text.",
    ),
    Wrong(
        BATCH,
        {"tubemq.tls.keyPassword": ""},
        "TUBEMQ_OPTION_VALUE",
        "Option 'tubemq.tls.keyPassword' is '***', but must be some text.",
    ),
    value(BATCH, "tubemq.tls.serverName", "", "the name or the address of a host"),
    value(WRITE, "tubemq.tls.minVersion", "1.0", "TLSv1.2 or TLSv1.3"),
    # Writes.
    value(WRITE, "topic", "my-topic", f"a topic name: {NAME}"),
    value(WRITE, "receiptsPath", "receipts", LOCATION),
    value(WRITE, "receiptsPath", "ftp://host/receipts", LOCATION),
    value(WRITE, "onReplayDiffers", "ignore", "fail or keep"),
    value(WRITE, "messageTime", "later", "now, column or none"),
    value(WRITE, "deliveryTimeoutMs", "0", MS),
    value(WRITE, "onError", "ignore", "fail or deadLetter"),
    value(WRITE, "deadLetterTopic", "a,b", f"a topic name: {NAME}"),
    value(WRITE, "stampMessageUid", "perhaps", "true or false"),
    value(WRITE, "retryAmbiguous", "never", "true or false"),
    value(WRITE, "keepOrder", "always", "true or false"),
    value(WRITE, "partitioner", "random", "roundRobin or sticky"),
    value(WRITE, "tubemq.sendWindowMessages", "0", "a whole number from 1 to 1000000"),
    value(WRITE, "tubemq.sendWindowBytes", "1MB", POSITIVE_INT),
    # Of Spark's Kafka source.
    *(of_kafka(WRITE if "serializer" in name else BATCH, name, advice) for name, advice in REFUSED.items()),
    of_kafka(STREAM, "kafka.max.poll.records", OF_ALL_CLIENTS),
    Wrong(
        STREAM,
        {"startingOffset": "earliest"},
        "TUBEMQ_OPTION_UNKNOWN",
        "Option 'startingOffset' is not known; did you mean 'startingOffsets'?",
    ),
]


def options_of(wrong):
    """Return the options of a query that is right but for what is wrong."""
    reads = wrong.mode is not WRITE and not any(name in wrong.options for name in SUBSCRIBING)
    return MASTERS | ({"subscribe": "demo"} if reads else {}) | wrong.options


def parse(mode, options):
    parsed = OptionSet.parse(options)
    made = {BATCH: parsed.for_batch_read, STREAM: parsed.for_stream_read, WRITE: parsed.for_write}
    return made[mode]()


@in_one_test("wrong", WRONG)
def test_a_wrong_option_is_refused_with_its_sentence(wrong):
    with pytest.raises(TubeMQError) as caught:
        parse(wrong.mode, options_of(wrong))
    assert str(caught.value) == f"[{wrong.condition}] {wrong.sentence}"
    assert not caught.value.retriable


@in_one_test("wrong", WRONG)
def test_a_wrong_option_is_refused_under_its_key_in_lower_case(wrong):
    """Which is how Spark hands them over."""
    options = {name.lower(): text for name, text in options_of(wrong).items()}
    with pytest.raises(TubeMQError) as caught:
        parse(wrong.mode, options)
    assert caught.value.condition == wrong.condition


def test_every_option_has_a_wrong_value():
    refused = {name for wrong in WRONG for name in wrong.options}
    assert refused >= NAMED.keys()
    assert refused >= REFUSED.keys()


@pytest.mark.parametrize(
    ("mode", "options", "condition", "sentence"),
    [
        (
            BATCH,
            MASTERS,
            "TUBEMQ_NOTHING_SUBSCRIBED",
            (
                "One of the options subscribe, subscribePattern and assign must be specified for "
                "a batch read; for example subscribe=demo,orders."
            ),
        ),
        (
            BATCH,
            MASTERS | {"topic": "demo"},
            "TUBEMQ_NOTHING_SUBSCRIBED",
            (
                "One of the options subscribe, subscribePattern and assign must be specified for "
                "a batch read; for example subscribe=demo,orders in place of 'topic', which only writes take."
            ),
        ),
        (
            STREAM,
            {"subscribe": "demo"},
            "TUBEMQ_OPTION_MISSING",
            (
                "Option 'tubemq.master.servers' must be specified for a streaming read; for example "
                "tubemq.master.servers=10.1.2.3:8715,10.1.2.4:8715."
            ),
        ),
        (
            WRITE,
            {"topic": "demo"},
            "TUBEMQ_OPTION_MISSING",
            (
                "Option 'tubemq.master.servers' must be specified for a write; for example "
                "tubemq.master.servers=10.1.2.3:8715,10.1.2.4:8715."
            ),
        ),
    ],
)
def test_a_missing_option_is_named(mode, options, condition, sentence):
    with pytest.raises(TubeMQError) as caught:
        parse(mode, options)
    assert str(caught.value) == f"[{condition}] {sentence}"
