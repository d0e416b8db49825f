"""Whatever goes wrong, a consumer that confirms what it has processed misses nothing and repeats nothing."""

import asyncio

from hypothesis import given, settings, strategies as st

from testkit.examples import examples
from tests.client import model_broker as model
from tests.client.model_broker import BROKER_ID, TOKEN, Entry, ModelBroker, Store
from tests.client.ranges import limits
from tubemq_spark.client.broker.cursor import Cursor
from tubemq_spark.client.broker.lease import Lease
from tubemq_spark.client.broker.session import BrokerSession, Claim
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import INDEX_ENTRY_BYTES, StoreId, TopicPartition
from tubemq_spark.net.connections import Connections

STORE = StoreId("demo", BROKER_ID, 0)
PARTITION = TopicPartition("demo", BROKER_ID, 0)
CLAIM = Claim(PARTITION, "etl", "etl_me-1-2-3")


def expire(broker, exchange):
    """Remove some of the oldest records before the request is carried out."""
    for store in broker.stores.values():
        store.first = min(store.first + 3, len(store.entries))
    return False


entries = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([True] * 9 + [False])), max_size=40)
faults = st.dictionaries(
    st.integers(0, 60), st.sampled_from([*model.QUICK_FAULTS.values(), *[expire] * 5]), max_size=6
)


class OneName:
    """Holds a partition under the user's group and one client id, over a connection that may be lost."""

    def __init__(self, connect):
        self._connect = connect
        self.lease = None

    async def acquire(self, offset):
        session = await self._connect()
        if self.lease is None:
            self.lease = Lease(session, CLAIM)
        self.lease.session = session
        return await self.lease.register(offset)


async def consume(broker, end):
    """Return the numbers of the records that were processed and confirmed, and the offsets that were lost."""
    connections = Connections()
    config = ClientConfig((broker.endpoint,), "etl", rpc_timeout_ms=2_000)

    async def connect():
        return BrokerSession(await connections.get(broker.endpoint), config, TOKEN)

    cursor = Cursor(OneName(connect), PARTITION)
    processed, lost, position, placed = [], set(), 0, False
    while position < end:
        try:
            if not placed:
                begin = (await cursor.seek(position)).current
                lost |= set(range(position, begin))
                position, placed = begin, True
                continue
            fetched = await cursor.receive(cursor.start_fetch())
            found = [int(fetched.columns.message(row).value) for row in range(len(fetched.columns))]
            assert broker.holdings["etl", "demo", 0].committed <= position or not found
            step = await cursor.confirm()
        except TubeMQError:
            placed = False
            continue
        assert step.start == position
        processed += found
        position = cursor.position
    await connections.close()
    return processed, lost


@settings(max_examples=examples(150), deadline=None)
@given(entries, st.integers(1, 3), st.integers(0, 40), limits, faults)
def test_every_record_is_processed_once_and_in_order_or_known_to_be_lost(
    rows, partitions, flushed, most, faults
):
    store = Store(flushed=min(flushed, len(rows)))
    for number, (index, readable) in enumerate(rows):
        store.entries.append(Entry(index % partitions, b"%d" % number, 1_000_003 * number, readable))
    with ModelBroker({STORE: store}, partitions, most) as broker:
        broker.faults = dict(faults)
        processed, lost = asyncio.run(consume(broker, store.latest))

    ours = [n for n, entry in enumerate(store.entries) if entry.partition_id == 0 and entry.readable]
    assert processed == sorted(set(processed))
    assert {n for n in ours if n * INDEX_ENTRY_BYTES not in lost} <= set(processed) <= set(ours)
