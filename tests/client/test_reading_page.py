"""The page about looking into topics: its examples run, and its table has the arguments of ``read``."""

import inspect
import re
from pathlib import Path

from tubemq_spark.client import TubeMQClient
from tubemq_spark.client.transport import client_base
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.model import Endpoint

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client" / "reading.md"
OTHERS = {"self", "topics", "on_loss"}
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_examples_run(capsys, monkeypatch):
    program = "\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))
    assert "127.0.0.1:8715" in program
    with EmbeddedTubeMQ(topics={"orders": (1, 1), "clicks": (1, 1)}, brokers=1) as server:
        # It is at none of the usual ports.
        web = (Endpoint.parse(server.master_web),)
        monkeypatch.setattr(client_base, "usual_web_servers", lambda _masters: web)
        names = {}
        exec(compile(program.replace("127.0.0.1:8715", server.master), str(PAGE), "exec"), names)
        names["client"].close()
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(" ")[2] for line in lines[:3]] == ["97", "98", "99"]
    assert lines[3] == "('clicks', 'orders')"
    assert lines[5:] == [
        "orders/1:0 0 2800 100",
        "100",
        """['{"number": 0}', '{"number": 1}']""",
        "[28, 56]",
        "True [1]",
    ]


def test_the_arguments_of_a_read_are_those_that_there_are():
    section = TEXT.partition("## Reading\n")[2].partition("\n## ")[0]
    arguments = [name for name in inspect.signature(TubeMQClient.read).parameters if name not in OTHERS]
    assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == arguments
