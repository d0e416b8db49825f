"""Ranges as Arrow without Spark: the rows that Spark reads, and what others make of them."""

import contextlib
import re
from pathlib import Path

import pytest

from integration_tests.rig.servers import partitions
from testkit.arrow_reads import option_sets, read_without_spark, rows_of, send_messages
from tubemq_spark.client import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.spark.columns import UNPACKED

PAGE = Path(__file__).parents[1] / "docs" / "client" / "arrow.md"
CODE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
DOWNLOADED = "its wheel is downloaded by make nightly only, since it is large"


@pytest.mark.parametrize("shape", ["3x1", pytest.param("2x3", marks=pytest.mark.nightly)])
def test_spark_and_arrow_have_the_same_rows(spark, server, shape):
    topic, packed = server.fresh_topic(shape), server.fresh_topic()
    with TubeMQClient.connect(server.master, group="it_group") as client:
        send_messages(client, topic, packed)
        layout = client.layout(topic)
        bounds = client.bounds(layout).complete()
        latest = dict(
            zip(
                partitions(shape),
                [bounds[one.store_id].latest for one in sorted(layout.partitions)],
                strict=True,
            )
        )
        for options, columns in option_sets(topic, packed, latest):
            reader = spark.read.format("tubemq").options(**server.options(**options))
            if columns is not None:
                reader = reader.schema(", ".join(f"{name} {UNPACKED[name].type_name}" for name in columns))
            rows = rows_of(reader.load().toArrow().to_batches())
            assert read_without_spark(client, options, columns) == rows, options


@pytest.mark.nightly
@pytest.mark.any_server
def test_the_page_does_what_it_says(tmp_path, capsys, monkeypatch):
    for library in ("polars", "duckdb", "pandas"):
        pytest.importorskip(library, reason=DOWNLOADED)
    monkeypatch.chdir(tmp_path)
    values = {}
    with contextlib.ExitStack() as running:
        server = running.enter_context(EmbeddedTubeMQ(topics={"clicks": (2, 1), "orders": (1, 1)}))
        with TubeMQClient.connect(server.master) as client, client.producer() as producer:
            for number in range(100):
                for topic in ("clicks", "orders"):
                    producer.send(topic, [b"home", b"cart"][number % 4 == 0], message_time="202601010304")
        blocks = CODE.findall(PAGE.read_text(encoding="utf-8"))
        assert len(blocks) == 7
        shown = []
        for block in blocks:
            assert ("127.0.0.1:8715" in block) == (not values)
            exec(block.replace("127.0.0.1:8715", server.master), values)
            running.callback(values["client"].close)
            shown.append(capsys.readouterr().out)
    assert sum(map(int, shown[0].split())) == 100
    assert values["frame"].shape == (100, 2)
    assert sorted(values["pages"]) == [("cart", 25), ("home", 75)]
    assert len(values["table"]) == 100
    assert (tmp_path / "clicks.parquet").stat().st_size > 500
    assert shown[5].split() == ["200"]
    assert shown[6].splitlines() == ["100 rows; 0 gaps"]
