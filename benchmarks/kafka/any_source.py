"""A Python data source that does nothing: what remains is what Spark takes for any Python source.

A batch has one row. A stream begins with one row and has one more for each datagram that its driver process
gets; asking for the latest offset costs a system call. With ``rowsPerSecond`` it has as many as the clock
says.
"""

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

FORMAT: Final = "bench_any"
_LARGEST_DATAGRAM: Final = 1 << 16


class _Rows(InputPartition):
    def __init__(self, values: Sequence[bytes]) -> None:
        super().__init__(None)
        self.values = list(values)


def _batches(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, _Rows)
    yield pa.RecordBatch.from_pydict({"value": pa.array(partition.values, pa.binary())})


class AnyDataSource(DataSource):
    """``format("bench_any")``.

    Options of a stream: ``port``, where its driver process gets datagrams; or ``rowsPerSecond``, of 100 B.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns."""
        return "value binary"

    def reader(self, schema: object) -> DataSourceReader:  # noqa: ARG002
        """Return the batch reader."""
        return _Reader()

    def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return the stream reader."""
        if "rowsPerSecond" in self.options:
            return _SteadyReader(int(self.options["rowsPerSecond"]))
        return _StreamReader(int(self.options["port"]))


class _Reader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [_Rows([b"0"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(partition)


class _StreamReader(DataSourceStreamReader):
    """Offsets count the rows since the query's start."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._values = [b"0"]
        self._socket: socket.socket | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"rows": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        if self._socket is None:
            self._socket = socket.socket(type=socket.SOCK_DGRAM)
            self._socket.bind(("127.0.0.1", self._port))
            self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._values.append(self._socket.recv(_LARGEST_DATAGRAM))
        return {"rows": len(self._values)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [_Rows(self._values[start["rows"] : end["rows"]])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(partition)

    def commit(self, end: dict[str, Any]) -> None:
        pass

    def stop(self) -> None:
        pass


class _Count(InputPartition):
    def __init__(self, rows: int) -> None:
        super().__init__(None)
        self.rows = rows


class _SteadyReader(DataSourceStreamReader):
    """Offsets count the rows that are due since 1970."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"rows": int(time.time() * self._per_second)}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        return self.initialOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [_Count(end["rows"] - start["rows"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Count)
        yield pa.RecordBatch.from_pydict({"value": pa.array([b"x" * 100] * partition.rows, pa.binary())})

    def commit(self, end: dict[str, Any]) -> None:
        pass

    def stop(self) -> None:
        pass


def register(spark: SparkSession) -> None:
    """Make the format known."""
    spark.dataSource.register(AnyDataSource)
