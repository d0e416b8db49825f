"""The threaded producer on two Java brokers: what it tells of a message is where readers find it."""

import concurrent.futures
import itertools

from integration_tests.rig.messages import client_config
from tubemq_spark.client import TubeMQClient

TOPIC = "threaded"
THREADS = 4
MESSAGES = 1_000
"""For each thread."""
SECONDS = 60


def test_several_threads_are_told_where_readers_find_each_message(real_brokers):
    told = []

    def work(thread):
        """Send, and ask for the outcomes in turns by a future and by a callback."""
        futures = []
        for number in range(MESSAGES):
            value = b"%d %d" % (thread, number)
            if number % 2:
                futures.append((value, producer.send(TOPIC, value, key=b"%d" % (number % 7))))
            else:
                producer.send(TOPIC, value, callback=lambda *both, value=value: told.append((value, *both)))
        return [(value, future.result(SECONDS)) for value, future in futures]

    with TubeMQClient(client_config(real_brokers.master)) as client:
        with (
            client.producer() as producer,
            concurrent.futures.ThreadPoolExecutor(THREADS) as pool,
        ):
            results = list(itertools.chain(*pool.map(work, range(THREADS))))
            producer.flush()
            receipts = producer.receipts()
        assert [error for *_, error in told if error] == []
        results += [(value, result) for value, result, _ in told]
        records = list(client.read(TOPIC))

    assert len(results) == THREADS * MESSAGES
    by_place = {(record.partition, record.offset): record for record in records}
    assert {result.partition.broker_id for _, result in results} == {1, 2}
    for value, result in results:
        record = by_place[result.partition, result.offset]
        assert record.value == value
        assert record.message_id == result.message_id
        assert result.append_time_ms > 1_700_000_000_000
    assert sum(receipt.count for receipt in receipts) == THREADS * MESSAGES
    copies = sum(result.unanswered for _, result in results)
    assert THREADS * MESSAGES <= len(records) <= THREADS * MESSAGES + copies
