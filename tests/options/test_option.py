import pytest
from hypothesis import given, strategies as st

from tests.cases import in_one_test
from tests.offsets import strategies as own
from tubemq_spark.errors import OffsetFormatError
from tubemq_spark.files.folder_uri import FolderUri
from tubemq_spark.options import option
from tubemq_spark.settings.kinds import TIME_ZONE


@given(
    st.one_of(
        st.integers(0, 10**11).map(lambda value: (option.DURATION, value)),
        st.integers(1, 2**63 - 1).map(lambda value: (option.size(2**63 - 1), value)),
        st.sampled_from(["/a/b", "hdfs://n:8020/a", "s3://b/a"]).map(
            lambda value: (option.FOLDER, FolderUri(value))
        ),
        own.positions.map(lambda value: (option.offset_spec("startingOffsets"), value)),
    )
)
def test_a_shown_option_value_is_parsed_to_the_same_value(pair):
    kind, value = pair
    assert kind.parse(kind.show(value)) == value


@in_one_test(
    ("text", "value"),
    [
        ("15m", 900_000),
        (" 30S ", 30_000),
        ("7", 7),
        ("8 ms", 8),
        ("2min", 120_000),
        ("3h", 10_800_000),
        ("1d", 86_400_000),
        ("0s", 0),
        ("1.5s", None),
        ("", None),
        ("9" * 13, None),
    ],
)
def test_durations(text, value):
    assert option.DURATION.parse(text) == value


@in_one_test(
    ("text", "value"),
    [
        ("1", 1),
        (" 64M ", 67_108_864),
        ("7b", 7),
        ("1kb", 2**10),
        ("2mb", 2**21),
        ("1gb", 2**30),
        ("3tb", 3 * 2**40),
        ("4pb", 2**52),
        ("0", None),
        ("1.5g", None),
        ("1 mib", None),
        ("8192p", None),
        ("", None),
    ],
)
def test_sizes(text, value):
    assert option.size(2**63 - 1).parse(text) == value


@in_one_test(
    ("text", "value"),
    [
        ("UTC", "UTC"),
        (" Asia/Shanghai ", "Asia/Shanghai"),
        ("Nowhere/Land", None),
        ("", None),
        ("../UTC", None),
        ("/etc/passwd", None),
        ("a\0b", None),
    ],
)
def test_time_zones(text, value):
    assert TIME_ZONE.parse(text) == value


def test_a_wrong_position_names_the_option():
    with pytest.raises(OffsetFormatError, match="Option 'endingOffsets'"):
        option.offset_spec("endingOffsets").parse("newest")
