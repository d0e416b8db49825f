"""The page about group consumers: its examples run, one after the other, as they stand."""

import re
from pathlib import Path

from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ

CONNECTS = re.compile(r'TubeMQClient\.connect\("127\.0\.0\.1:8715", group="(\w+)"\)')
PAGE = Path(__file__).resolve().parents[4] / "docs" / "client" / "group-consumer.md"


def test_the_examples_do_what_they_say():
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    settings = EmbeddedSettings(balance_period_ms=100)
    with EmbeddedTubeMQ(topics={"orders": (2, 2)}, brokers=3, settings=settings) as server:
        names = {}
        try:
            # Partitions come with heartbeats, which are 13 s apart otherwise.
            url = rf"tubemq://{server.master}?group=\1&heartbeat_period_ms=100"
            program, count = CONNECTS.subn(f'TubeMQClient.from_url("{url}")', program)
            assert count == 2
            exec(compile(program, str(PAGE), "exec"), names)
        finally:
            names["client"].close()
    assert sorted(names["read"]) == sorted(b"order %d" % number for number in range(1000))
    assert sorted(record.value for record in names["handled"]) == sorted(b"more %d" % n for n in range(30))
    everything = names["read"] + [record.value for record in names["handled"]]
    assert sorted(record.value for record in names["awaited"]) == sorted(everything)
