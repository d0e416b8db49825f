"""What a request may have: the .proto says it, and what has more is refused before anything else."""

import re

import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given

from testkit.git import ROOT
from tests.cases import in_one_test
from tests.protocol.gateway.gateway_values import send_batches
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, sends, service
from tubemq_spark.protocol.gateway.batches import MalformedMessageError
from tubemq_spark.protocol.gateway.service import METHODS

PROTO = ROOT / "tubemq_spark/protocol/gateway/proto/tubemq/gateway/v1/gateway.proto"
UNBOUNDED = {"MessageBatch"}
"""Its texts are bounded by its bytes, its lists by what is measured before it is parsed."""


def fields():
    """The name of each field of the .proto, whether it is a list, its type, and the comment behind it."""
    nested = []
    for line in PROTO.read_text().splitlines():
        field = re.match(r"\s*(repeated |optional |)([\w.]+) (\w+) = \d+;\s*(?:// (.*))?$", line)
        if opening := re.match(r"\s*(message|enum|oneof|service) (\w+) \{(\})?", line):
            nested += [] if opening[3] else [opening.groups()[:2]]
        elif re.match(r"\s*\}", line):
            nested.pop()
        elif field:
            name = ".".join([name for kind, name in nested if kind == "message"] + [field[3]])
            yield name, field[1] == "repeated ", field[2], field[4] or ""


def said(name, repeated, kind):
    """The comment that a bound has."""
    bound, each = service.BOUNDS.get(name), service.BOUNDS.get(f"{name}[]")
    if bound is None:
        return ""
    of_each = f" of {each:,} characters" if each else ""
    unit = of_each if repeated else " bytes" if kind == "bytes" else " characters"
    return f"at most {bound:,}{unit}"


def test_the_comments_name_the_bounds_that_are_checked():
    comments = {name: (comment, said(name, *rest)) for name, *rest, comment in fields()}
    assert {name for name, (comment, bound) in comments.items() if comment != bound} == set()
    assert {name.removesuffix("[]") for name in service.BOUNDS} <= comments.keys()


def requests():
    """All messages that can be in a request."""
    left, known = [method.request.DESCRIPTOR for method in METHODS.values()], {}
    while left:
        message = left.pop()
        if message.full_name not in known and message.name not in UNBOUNDED:
            known[message.full_name] = message
            left += [field.message_type for field in message.fields if field.message_type]
    return known.values()


def test_each_list_and_each_text_of_a_request_has_a_bound():
    unbounded = {
        name
        for message in requests()
        for field in message.fields
        for name in [field.full_name.removeprefix("tubemq.gateway.v1.")]
        if field.type in {field.TYPE_STRING, field.TYPE_BYTES} or has_items(message, field)
        if name not in service.BOUNDS
    }
    assert unbounded == set()


def has_items(message, field):
    return hasattr(getattr(GetMessageClass(message)(), field.name), "append")


PARTITION = pb.Partition(topic="t", broker_id=1)


@in_one_test(
    ("message", "what"),
    [
        (pb.QueryBoundsRequest(stores=[pb.Store()] * 10_001), "10001 items, and 10000 is the most"),
        (pb.DetachPartitionsRequest(partitions=[PARTITION] * 10_001), "10001 items"),
        (pb.QueryRouteRequest(topics=["t"] * 1_025), "1025 items, and 1024"),
        (pb.QueryRouteRequest(topics=["t", "x" * 1_025]), r"topics\[\] has 1025 characters"),
        (pb.OpenSessionRequest(version="x" * 257), "257 characters, and 256"),
        (pb.OpenSessionRequest(secret=b"x" * 65), "65 bytes, and 64"),
        (
            pb.OpenSessionRequest(settings=pb.SessionSettings(reader_groups=["r"] * 257)),
            "SessionSettings.reader_groups has 257 items, and 256",
        ),
        (
            pb.OpenSessionRequest(settings=pb.SessionSettings(reader_groups=["r" * 200] * 200)),
            "OpenSessionRequest.settings has 40600 bytes, and 32768 is the most",
        ),
        (
            pb.OpenSessionRequest(settings=pb.SessionSettings(message_types=["x"] * 501)),
            "SessionSettings.message_types has 501 items",
        ),
        (pb.ReadRangeRequest(partition=pb.Partition(topic="x" * 1_025)), "Partition.topic has 1025"),
        (
            pb.SubscribeRequest(filters=[pb.TopicFilter(message_types=["x" * 257])]),
            r"TopicFilter.message_types\[\] has 257",
        ),
        (
            pb.ConsumeRequest(pause=pb.ConsumeRequest.Pause(partitions=[PARTITION] * 10_001)),
            "ConsumeRequest.Pause.partitions has 10001",
        ),
    ],
)
def test_a_request_with_more_than_it_may_have_is_refused(message, what):
    with pytest.raises(MalformedMessageError, match=what):
        service.check_bounds(message)


def test_a_request_with_as_much_as_it_may_have_is_let_through_and_fits():
    name = "x" * 64
    for message in (
        pb.QueryBoundsRequest(stores=[pb.Store(topic=name, broker_id=1 << 30, store=1 << 30)] * 10_000),
        pb.QueryRouteRequest(topics=[name] * 1_024),
        pb.OpenSessionRequest(client_id="x" * 1_024, secret=bytes(64)),
    ):
        service.check_bounds(message)
        assert message.ByteSize() <= service.REQUEST_BYTES


def test_a_batch_is_not_looked_through_when_it_is_parsed():
    batch = pb.MessageBatch(topics=["x" * 2_000] * 20_000)
    service.check_bounds(pb.PublishStreamRequest(batch=batch))


def measured(batch):
    """What a batch takes, by itself and in a request."""
    alone = service.parsed_bytes(pb.MessageBatch, batch.SerializeToString())
    request = pb.PublishStreamRequest(batch=batch, number=1)
    assert alone < service.parsed_bytes(pb.PublishStreamRequest, request.SerializeToString()) < alone + 1_000
    return alone


HEADER = pb.MessageHeader(attributes=[{"name": "a", "value": "b"}])
LISTS = [
    ("topics", ""),
    ("topics", "x" * 300),
    ("headers", pb.MessageHeader()),
    ("headers", HEADER),
    ("places", pb.Place()),
    ("places", pb.Place(broker_id=1, partition_id=10_000)),
]


@in_one_test(("name", "item"), LISTS)
def test_each_item_of_a_batch_counts_as_the_memory_that_it_takes(name, item):
    few, many = (pb.MessageBatch(**{name: [item] * count}) for count in (0, 10_000))
    assert measured(few) == 0
    assert 10_000 * 250 < measured(many) - many.ByteSize() < 10_000 * 1_100


@in_one_test(("name", "item"), LISTS)
def test_a_batch_with_a_list_that_is_too_long_is_refused_before_it_is_parsed(name, item):
    batch = pb.MessageBatch(**{name: [item] * 10_001})
    with pytest.raises(MalformedMessageError, match=f"MessageBatch.{name} has more than 10000 items"):
        measured(batch)


def test_attributes_are_counted_in_each_header_and_in_all_of_them():
    attribute = pb.Attribute()
    with pytest.raises(MalformedMessageError, match=r"MessageHeader.attributes has more than 10000 items"):
        measured(pb.MessageBatch(headers=[pb.MessageHeader(attributes=[attribute] * 10_001)]))
    header = pb.MessageHeader(attributes=[attribute] * 990)
    measured(pb.MessageBatch(headers=[header] * 100))
    with pytest.raises(MalformedMessageError, match="a batch has more than 100000 fields"):
        measured(pb.MessageBatch(headers=[header] * 102))


def test_a_batch_that_is_written_in_pieces_or_in_odd_ways_is_counted_as_one():
    many = pb.PublishStreamRequest(batch=pb.MessageBatch(places=[pb.Place()] * 60_000)).SerializeToString()
    half = pb.PublishStreamRequest(batch=pb.MessageBatch(topics=[""] * 6_000)).SerializeToString()
    # A request may have its batch several times: parsers put them together.
    with pytest.raises(MalformedMessageError, match=r"PublishStreamRequest.batch has more than 1 items"):
        service.parsed_bytes(pb.PublishStreamRequest, half + half)
    # The numbers of fields may be longer than they need to be, and the field may be unknown.
    for field in (b"\xba\x80\x00\x00", b"\xfa\x07\x00"):
        assert len(pb.MessageBatch.FromString(field * 3).SerializeToString()) > 0
        with pytest.raises(MalformedMessageError):
            service.parsed_bytes(pb.MessageBatch, field * 100_001)
    with pytest.raises(MalformedMessageError):
        service.parsed_bytes(pb.PublishStreamRequest, many)


def test_a_long_batch_of_few_fields_is_measured_by_its_length():
    batch = pb.MessageBatch(values=pb.BytesColumn(data=bytes(1 << 20), borders=bytes(80_000)))
    assert len(batch.SerializeToString()) <= measured(batch) < len(batch.SerializeToString()) + 1_000


@in_one_test(
    "data", [b"\x0a", b"\x0a\x05x", b"\xff" * 11, b"\x0b", b"\x0c", b"\x0d\x00", b"\x22\x02\x12\x05"]
)
def test_bytes_that_are_no_batch_are_refused(data):
    with pytest.raises(MalformedMessageError):
        service.parsed_bytes(pb.MessageBatch, data)


@given(send_batches())
def test_any_batch_of_a_client_can_be_measured(batch):
    message = sends.to_proto(batch)
    assert measured(message) >= message.ByteSize()


@pytest.mark.parametrize(
    ("count", "sizes"), [(0, [0]), (3, [3]), (10, [10]), (11, [10, 1]), (25, [10, 10, 5])]
)
def test_what_is_more_than_a_request_may_have_goes_into_several(count, sizes):
    assert list(map(len, service.chunks(range(count), 10))) == sizes
    assert [item for part in service.chunks(range(count), 10) for item in part] == list(range(count))


def all_pages(names, item, size=0, most=1_000):
    token, parts = "", []
    while not parts or token:
        part, token = service.page(names, item, size, token, most)
        parts.append(part)
    return parts


def test_pages_have_all_items_once_in_order():
    names = [f"{number:03}" for number in range(25)]
    for size, most, lengths in (
        (0, 10, [10, 10, 5]),
        (10, 1_000, [10, 10, 5]),
        (5, 10, [5] * 5),
        (0, 25, [25]),
    ):
        parts = all_pages(names[::-1], str, size, most)
        assert list(map(len, parts)) == lengths
        assert [name for part in parts for name in part] == names
    assert all_pages([], str) == [[]]


def test_a_page_is_no_longer_than_clients_take_unless_one_item_is():
    def member(name):
        return pb.ListMembersResponse.Member(client_id=name, partitions=[{"topic": "x" * (1 << 20)}])

    names = [f"m{number}" for number in range(5)]
    assert list(map(len, all_pages(names, member))) == [2, 2, 1]
    long = {"a": "x", "b": "x" * (5 << 20), "c": "x"}
    assert list(map(len, all_pages(long, long.__getitem__))) == [1, 1, 1]
