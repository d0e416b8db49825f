"""A producer through two gateways that are killed in turn loses nothing, and tells what may be repeated."""

import collections
import threading

from tests.cluster.gateways import three_brokers
from tests.waiting import wait_until
from tubemq_spark.client import TubeMQClient

SECONDS = 60
COUNT = 3_000


def url_of(parts, **settings):
    addresses = ",".join(map(str, parts.addresses))
    return f"gateway://{addresses}?" + "&".join(f"{name}={value}" for name, value in settings.items())


def test_gateways_that_are_killed_in_turn_lose_and_double_nothing_unsaid():
    with three_brokers(gateways=2) as parts:
        url = url_of(parts, group="writers", register_retry_ms=20, rpc_timeout_ms=2000)
        with TubeMQClient.connect(url) as client, client.producer() as producer:
            futures, over = {}, threading.Event()

            def send():
                for number in range(COUNT):
                    value = b"%d" % number
                    futures[value] = producer.send("demo", value, key=b"%d" % (number % 7))
                over.set()

            sending = threading.Thread(target=send)
            sending.start()
            for turn in range(4):
                wait_until(lambda turn=turn: len(futures) > COUNT * (turn + 1) // 6 or over.is_set(), SECONDS)
                parts.kill(turn % 2)
                parts.restart(turn % 2)
            sending.join(SECONDS)
            results = {value: future.result(SECONDS) for value, future in futures.items()}
            records = list(client.read("demo"))
        stored = collections.Counter(record.value for record in records)
        assert stored.keys() == results.keys()
        for value, times in stored.items():
            assert times <= 1 + results[value].unanswered
        by_place = {(record.partition, record.offset): record.value for record in records}
        assert all(by_place[result.partition, result.offset] == value for value, result in results.items())


def test_a_producer_whose_gateways_drain_doubles_nothing():
    with three_brokers(gateways=2) as parts:
        with (
            TubeMQClient.connect(url_of(parts, register_retry_ms=20)) as client,
            client.producer() as producer,
        ):
            futures = [producer.send("demo", b"%d" % number) for number in range(500)]
            parts.drain(0)
            futures += [producer.send("demo", b"%d" % number) for number in range(500, 1000)]
            assert {future.result(SECONDS).unanswered for future in futures} == {0}
            stored = collections.Counter(record.value for record in client.read("demo"))
        assert stored == {b"%d" % number: 1 for number in range(1000)}
