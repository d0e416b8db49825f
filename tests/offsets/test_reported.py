"""What a stream tells with its progress."""

import pytest

from tubemq_spark.errors import OffsetFormatError
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.reported import ReportedEnd
from tubemq_spark.offsets.source_offset import SourceOffset

LATEST = {TopicPartition("demo", 1, 0): 280, TopicPartition("demo", 2, 0): 0}


@pytest.mark.parametrize(
    "told", [ReportedEnd(LATEST), ReportedEnd(LATEST, (2, 10), 3), ReportedEnd(LATEST, (), 1)]
)
def test_what_is_written_is_read(told):
    assert ReportedEnd.from_json(told.to_json()) == told


def test_without_an_outage_it_is_an_offset_as_any_release_reads_it():
    assert SourceOffset.from_json(ReportedEnd(LATEST).to_json()).next_offsets == LATEST


@pytest.mark.parametrize("brokers", [7, {}, {"away": 7, "outages": "many"}, {"away": ["x"]}])
def test_brokers_as_no_release_writes_them(brokers):
    """Of a later release, perhaps: where topics end is still known, or the whole is refused."""
    data = {**ReportedEnd(LATEST).to_json(), "brokers": brokers}
    if isinstance(brokers, dict):
        assert ReportedEnd.from_json(data) == ReportedEnd(LATEST)
    else:
        with pytest.raises(OffsetFormatError):
            ReportedEnd.from_json(data)
