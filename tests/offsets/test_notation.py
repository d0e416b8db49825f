import json

import pytest

from tests.cases import in_one_test
from tests.offsets import strategies as own
from tubemq_spark.errors import OffsetFormatError
from tubemq_spark.model import MAX_OFFSET
from tubemq_spark.offsets.notation import OffsetReader, write_offsets


def reader(text=""):
    return OffsetReader("The test", text, "look here")


def test_partitions_are_ordered_by_number():
    offsets = {own.tp("demo/10:0"): 0, own.tp("demo/2:10"): 0, own.tp("demo/2:9"): 0, own.tp("a1/3:0"): 0}
    assert (
        json.dumps(write_offsets(offsets)) == '{"a1": {"3:0": 0}, "demo": {"2:9": 0, "2:10": 0, "10:0": 0}}'
    )


@in_one_test(
    ("text", "problem"),
    [
        ("", "it is blank"),
        ("newest", "it is not JSON, in newest;"),
        ("{]", "it is not JSON (Expecting property name"),
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ('{"a": ' + "9" * 5000 + "}", "it is not JSON"),
        ("[1]", "the text is [1], not an object"),
        ("280", "the text is 280, not an object"),
        ("null", "the text is null, not an object"),
        ('{"demo": {"1:0": 0, "1:0": 28}}', "it names '1:0' twice"),
        ('{"demo": {}, "demo": {}}', "it names 'demo' twice"),
    ],
)
def test_text_that_is_no_object_is_refused(text, problem):
    with pytest.raises(OffsetFormatError) as caught:
        reader(text).load()
    assert caught.value.condition == "TUBEMQ_OFFSETS_MALFORMED"
    message = str(caught.value)
    assert message.startswith(f"[TUBEMQ_OFFSETS_MALFORMED] The test cannot be read: {problem}")
    assert message.endswith("; look here.")
    assert len(message) < 700


@pytest.mark.parametrize("length", [200, 201])
def test_long_text_is_cut_in_the_error(length):
    text = "x" * length
    with pytest.raises(OffsetFormatError) as caught:
        reader(text).load()
    assert ("..." in str(caught.value)) == (length > 200)


@in_one_test(
    "key",
    [
        *("", "1", "1:", ":0", "1:0:0", "a:0", "1:b", "-1:0", "+1:0", " 1:0", "1:0\n", "01:0", "1:00"),
        *("1.0:0", "\u0661:0", f"{2**31}:0", f"1:{2**31}", "99999999999:0"),
    ],
)
def test_keys_of_another_form_are_refused(key):
    with pytest.raises(OffsetFormatError, match="of topic 'demo' is not brokerId:partitionId"):
        reader().partition("demo", key)


@pytest.mark.parametrize("key", ["0:0", f"{2**31 - 1}:{2**31 - 1}", "10:20000"])
def test_keys_of_partitions(key):
    assert reader().partition("demo", key).local_id == key


@in_one_test("value", [28.0, 1e3, "28", None, True, False, [], {}])
def test_an_offset_must_be_a_whole_number(value):
    with pytest.raises(OffsetFormatError, match="of demo/1:0 is not a whole number"):
        reader().offset(value, own.tp("demo/1:0"))


@pytest.mark.parametrize("value", [-28, -1, 1, 27, 281, MAX_OFFSET + 28])
def test_an_offset_must_be_at_a_message(value):
    with pytest.raises(OffsetFormatError, match=f"the offset {value} of demo/1:0 is not a multiple of 28"):
        reader().offset(value, own.tp("demo/1:0"))


@pytest.mark.parametrize("data", [[], "demo", 1, None])
def test_topics_and_partitions_must_be_objects(data):
    with pytest.raises(OffsetFormatError, match=r"the topics' value is .*, not an object"):
        reader().offsets(data)
    with pytest.raises(OffsetFormatError, match=r"the value of topic 'demo' is .*, not an object"):
        reader().offsets({"demo": data})


@pytest.mark.parametrize("version", [0, -1, "1", 1.0, True, None])
def test_other_versions_are_no_versions(version):
    with pytest.raises(OffsetFormatError, match="is not a format version"):
        reader().check_version({"v": version})
