"""The page about assigned consumers: its examples run, one after the other, as they stand."""

import re
from pathlib import Path

from tubemq_spark.client.consumer.assigned.consumer import AssignedConsumer
from tubemq_spark.embedded.server import EmbeddedTubeMQ

PAGE = Path(__file__).resolve().parents[4] / "docs" / "client" / "assigned-consumer.md"


def test_the_examples_do_what_they_say():
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    assert "127.0.0.1:8715" in program
    with EmbeddedTubeMQ(topics={"orders": (2, 2)}, brokers=3) as server:
        names = {}
        try:
            exec(compile(program.replace("127.0.0.1:8715", server.master), str(PAGE), "exec"), names)
        finally:
            names["client"].close()
    assert sorted(names["read"]) == sorted(b"order %d" % number for number in range(1000))
    assert sorted(names["read_by_coroutine"]) == sorted(names["read"])
    first, second = names["shares"]
    assert len({*first, *second}) == len(first) + len(second) == 12
    assert names["confirmed"].offset > names["batch"].offset == 0


def test_the_page_names_what_there_is():
    text = PAGE.read_text(encoding="utf-8")
    for name in re.findall(r"`(\w+)\(", text):
        assert hasattr(AssignedConsumer, name), name
