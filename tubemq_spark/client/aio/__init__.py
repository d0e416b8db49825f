"""TubeMQ for coroutines.

    from tubemq_spark.client.aio import AsyncTubeMQClient

    async with AsyncTubeMQClient.connect("10.1.2.3:8715", group="my_job") as client:
        async with client.producer() as producer:
            result = await producer.send("clicks", b"home", key=b"anna")
        async with client.group_consumer("clicks") as consumer:
            async for batch in consumer:
                print([record.value for record in batch])
                await consumer.confirm(batch)

Everything has the name, the arguments, the errors and the rules that it has in ``tubemq_spark.client``, of
which this is another form: what waits is awaited. Values such as ``Batch`` and ``ConsumerConfig`` are in
that package.

**Threads.** No coroutine blocks the event loop, and none takes a thread while it waits for a message, for
room or for a broker's answer. These threads exist:

- one per stream through a gateway: that of a producer, and each range that is read;
- one per call that blocks and is rare: those of ``admin``, ``topics`` and ``lag``, a name that is looked
  up, and ``close``; with TLS, a connection to a broker and a call of a gateway, for the files.

Producers and consumers do all else in the event loop itself.

**One event loop.** A producer or a consumer belongs to the event loop that uses it first. Another one is
refused, and so is a forked child.
"""

from tubemq_spark.client.aio.client import AsyncMasterAdmin, AsyncTubeMQClient
from tubemq_spark.client.aio.consumer import AsyncAssignedConsumer, AsyncGroupConsumer
from tubemq_spark.client.aio.producer import AsyncProducer

__all__ = [
    "AsyncAssignedConsumer",
    "AsyncGroupConsumer",
    "AsyncMasterAdmin",
    "AsyncProducer",
    "AsyncTubeMQClient",
]
