"""The page about producers: its examples run, one after the other, as they stand."""

import re
from pathlib import Path

from tubemq_spark.client import SendResult, TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ

PAGE = Path(__file__).resolve().parents[3] / "docs" / "client" / "producer.md"


def test_the_examples_do_what_they_say():
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    assert "127.0.0.1:8715" in program
    with EmbeddedTubeMQ(topics={"letters": (1, 2)}, brokers=3) as server:
        names = {}
        exec(compile(program.replace("127.0.0.1:8715", server.master), str(PAGE), "exec"), names)
        assert len(names["stored"]) == 2000
        assert isinstance(names["result"], SendResult)
        assert len({(one.partition, one.offset) for one in names["outcomes"]}) == 1000
        with TubeMQClient.connect(server.master) as client:
            assert len(list(client.read("letters"))) == 1000 + 1 + 1000 + 1000 + 100 + 1 + 1000


def test_the_fields_of_a_result_are_those_of_the_page():
    text = PAGE.read_text(encoding="utf-8")
    for name in (*SendResult._fields, "may_be_repeated"):
        assert f"`{name}`" in text
