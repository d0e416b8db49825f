"""Partitions of a consumer whose brokers answer when a test says so, in virtual time.

Everything else is real: the line, the fetching, the cache and what it knows of brokers.
"""

import asyncio
import zlib

from tubemq_spark.client.broker.cursor import Step
from tubemq_spark.client.broker.session import Fetched, Position
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.cache import BrokerHealth, PartitionCache
from tubemq_spark.client.consumer.engine import FetchLine
from tubemq_spark.client.consumer.fetching import Fetching
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.consumer.life import Life
from tubemq_spark.client.consumer.partition import Standing
from tubemq_spark.client.consumer.state import ConsumerState
from tubemq_spark.client.consumer_config import ConsumerConfig, Subscription
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import TubeMQTimeoutError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol.errcodes import ErrCode, rpc_error
from tubemq_spark.protocol.fetch_decoder import FetchHeader, parse_fetch
from tubemq_spark.protocol.pb import broker_pb2

ROW = 28


def place(broker=1, number=0):
    return TopicPartition("demo", broker, number)


def batch_of(value):
    """Return the answer of a broker that has one message."""
    message = broker_pb2.TransferedMessage(
        messageId=1, checkSum=zlib.crc32(value) & 0x7FFFFFFF, payLoadData=value, flag=0
    )
    answer = broker_pb2.GetMessageResponseB2C(success=True, errCode=200, errMsg="OK!", messages=[message])
    return Fetched(*parse_fetch(answer.SerializeToString()), None)


class ScriptedPartition:
    """In place of ``ConsumerPartition``: its messages are 0, 1, 2 and so on, one in each batch."""

    own_store = True
    types = frozenset()

    def __init__(self, partition):
        self.partition = partition
        self.endpoint = Endpoint(f"broker{partition.broker_id}", 8123)
        self.lock = asyncio.Lock()
        self.standing = Standing.PLACED
        self.position = 0
        self.answer = None
        """What is to come, while the broker is asked."""

    async def fetch(self, *, confirms, own_limits):
        assert self.lock.locked()
        self.answer = asyncio.get_running_loop().create_future()
        try:
            return await self.answer
        finally:
            self.answer = None

    async def confirm(self):
        assert self.lock.locked()
        self.position += ROW

    async def roll_back(self):
        assert self.lock.locked()

    async def seek(self, target, limit):
        assert self.lock.locked()
        self.position = target
        return Position(target, None)

    async def release(self, *, consumed):
        self.abandon()

    def abandon(self):
        assert self.lock.locked()
        self.standing = Standing.RELEASED

    def unplace(self):
        pass


class ScriptedConsumer:
    """What a core has for its batches, with scripted partitions; of the loop that runs."""

    def __init__(self, *partitions, **settings):
        consumer = ConsumerConfig(**{"not_found_wait_ms": 0, **settings})
        config = ClientConfig((Endpoint("master", 8715),), "etl", consumer=consumer)
        clock = asyncio.get_running_loop().time
        self.state = ConsumerState(config, Subscription.of("demo"), FlowControl())
        confirm_timeout_ms = consumer.confirm_timeout_ms
        self.state.cache = PartitionCache(
            self.state.control, confirm_timeout_ms=confirm_timeout_ms, clock=clock
        )
        self.state.cache.brokers = BrokerHealth(clock, random=lambda: 0.0)
        self.state.life = Life.OPEN
        self.fetching = Fetching(self.state)
        self.tasks = OwnedTasks()
        self.line = FetchLine(self.fetching, self.tasks)
        self._fetches = []
        for partition in partitions:
            self.add(partition)

    def add(self, partition, position=0):
        scripted = ScriptedPartition(partition)
        scripted.position = position
        self.state.add(scripted, Position(position, None))

    @property
    def asked(self):
        """The partitions whose brokers have not answered, sorted."""
        return sorted(name for name, one in self.state.connected.items() if one.answer is not None)

    def answer(self, partition):
        """Answer with the next message of a partition."""
        scripted = self.state.connected[partition]
        scripted.answer.set_result(batch_of(b"%d" % (scripted.position // ROW)))

    def answer_nothing(self, partition):
        scripted = self.state.connected[partition]
        header = FetchHeader(False, ErrCode.NOT_FOUND, "nothing", -1, None, -1, -1, False)
        empty = batch_of(b"").messages
        refusal = rpc_error(header.err_code, "nothing", peer="broker", during="fetching")
        scripted.answer.set_result(
            Step(scripted.position, scripted.position, Fetched(header, empty, refusal))
        )

    def refuse(self, partition):
        """Refuse a partition for good."""
        error = rpc_error(ErrCode.BAD_REQUEST, "no", peer="broker", during="fetching")
        self.state.connected[partition].answer.set_exception(error)

    def time_out(self, partition):
        error = TubeMQTimeoutError("TUBEMQ_TIMEOUT", endpoint="broker", timeout_ms=1, during="fetching")
        self.state.connected[partition].answer.set_exception(error)

    def fetch(self, timeout_s=None, *, patient=False):
        """Begin to wait for a batch."""
        self._fetches.append(asyncio.ensure_future(self.line.fetch(timeout_s, patient=patient)))
        return self._fetches[-1]

    async def confirm(self, batch, *, consumed=True):
        await self.fetching.end_batch(batch.context, consumed=consumed)

    async def end(self):
        """End all that goes on."""
        self.state.end()
        await asyncio.gather(*self._fetches, return_exceptions=True)
        await self.tasks.cancel()


async def settle():
    """Run the loop until nothing is left that needs no time."""
    for _ in range(20):
        await asyncio.sleep(0)


def value_of(batch):
    (record,) = batch.records
    return int(record.value)
