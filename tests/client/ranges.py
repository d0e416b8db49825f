"""Reading ranges from the model broker: what the tests of ranges share."""

import contextlib

from hypothesis import strategies as st

from testkit.connections import opened_connections
from tests.client.model_broker import BROKER_ID, TOKEN, Limits, ModelBroker, Store
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.reader.range_reader import read_range
from tubemq_spark.model import Endpoint, OffsetRange, RangeRequest, Route, StoreId, TopicPartition
from tubemq_spark.net import loop
from tubemq_spark.net.connections import Connections
from tubemq_spark.offsets.loss import LossRecord, fail_on_loss

TOPIC = "demo"
STORE = StoreId(TOPIC, BROKER_ID, 0)
ROW = 28


def partition(number=0):
    return TopicPartition(TOPIC, BROKER_ID, number)


def config(broker, **changes):
    settings = {"rpc_timeout_ms": 2_000, "fetch_timeout_ms": 5_000, "lease_wait_ms": 2_000, **changes}
    return ClientConfig((broker.endpoint,), "etl", **settings).validate()


def request(broker, start, end, number=0, token=TOKEN, **known):
    return RangeRequest(OffsetRange(partition(number), start, end), Route(broker.endpoint, token), **known)


def batches(
    broker, start, end, number=0, on_loss=fail_on_loss, token=TOKEN, known=None, locate=None, **changes
):
    """Read a range; by default the master says that the partition is where it was."""
    work = request(broker, start, end, number, token, **(known or {}))

    async def where(partition):
        return locate(partition) if locate else broker.endpoint

    with opened_connections() as connections:
        reading = loop.iterate(
            read_range(config(broker, **changes), connections, work, locate=where), ahead=0
        )
        with contextlib.closing(reading) as items:
            for item in items:
                if isinstance(item, LossRecord):
                    on_loss(item)
                else:
                    yield item


def values_of(batch):
    return [batch.columns.message(row).value for row in range(len(batch.columns))]


def read(broker, start, end, number=0, **more):
    return [value for batch in batches(broker, start, end, number, **more) for value in values_of(batch)]


def broker_of(count=10, partitions=1, flushed=0, limits=None):
    """A broker with ``count`` records in turn over the partitions of one store."""
    store = Store()
    for number in range(count):
        store.append(number % partitions, [b"value %d" % number])
    store.flushed = flushed
    return ModelBroker({STORE: store}, partitions, limits)


@contextlib.asynccontextmanager
async def broker_and_connections(count=5, partitions=1, limits=None, **settings):
    """Yield such a broker, connections of the running loop, and settings for it."""
    with broker_of(count, partitions, limits=limits) as broker:
        connections = Connections()
        yield broker, connections, config(broker, **settings)
        await connections.close()


limits = st.builds(
    Limits,
    file_entries=st.integers(1, 9),
    memory_entries=st.integers(1, 9),
    first_bytes=st.integers(1, 500),
    later_bytes=st.integers(1, 500),
    segment_entries=st.integers(1, 12),
    halving=st.booleans(),
)
SMALL = Limits(file_entries=4, memory_entries=3, segment_entries=5)


def values(start, end):
    return [b"value %d" % number for number in range(start, end)]


def config_of(server, **changes):
    settings = {
        "masters": (Endpoint.parse(server.master),),
        "rpc_timeout_ms": 5_000,
        "fetch_timeout_ms": 5_000,
        "lease_wait_ms": 5_000,
        **changes,
    }
    return ClientConfig(group="etl", **settings).validate()
