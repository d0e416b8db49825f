"""Half an hour of a topic as a table, without Spark and Java, and the whole topic as a Parquet file.

A reader gives a batch at a time, and fetches it when it is asked for: the topic may be larger than the
memory. PyArrow counts here, since it is there anyway. Who has Polars or DuckDB gives them the same reader:
polars.from_arrow(reader), or duckdb.sql("SELECT ... FROM reader").
"""

import datetime
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from tubemq_spark.client import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ

TEN = datetime.datetime(2026, 1, 5, 10, tzinfo=datetime.UTC)


def main(master: str, file: Path) -> None:
    """Count the visits of half an hour, and write those of all times down."""
    with TubeMQClient.connect(master) as client:
        send_an_hour(client)
        count(client)
        write(client, file)


def count(client: TubeMQClient) -> None:
    """Show how often each page was visited, from half past ten on."""
    reader = client.read_arrow(
        "clicks",
        columns=["value"],
        startingTimestamp=TEN + datetime.timedelta(minutes=30),
        endingTimestamp=TEN + datetime.timedelta(hours=1),
        timestampSearch="exact",
    )
    with reader:
        visits = reader.read_all().group_by("value").aggregate([([], "count_all")])
    for row in visits.sort_by("value").to_pylist():
        print(row["value"].decode(), row["count_all"])


def write(client: TubeMQClient, file: Path) -> None:
    """Write the topic to a file, one batch after the other."""
    with client.read_arrow("clicks") as reader, pq.ParquetWriter(file, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
    print("rows in Parquet:", pq.read_metadata(file).num_rows)


def send_an_hour(client: TubeMQClient) -> None:
    """Send a visit for each minute from ten to eleven, every third one to the prices."""
    with client.producer() as producer:
        for number in range(60):
            minute = TEN + datetime.timedelta(minutes=number)
            page = b"home" if number % 3 else b"prices"
            producer.send("clicks", page, message_time=f"{minute:%Y%m%d%H%M}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        if len(sys.argv) > 1:  # the address of a master, whose cluster has the topic
            main(sys.argv[1], Path(directory, "clicks.parquet"))
        else:
            with EmbeddedTubeMQ(topics={"clicks": (2, 1)}) as server:  # two stores of one partition each
                main(server.master, Path(directory, "clicks.parquet"))
