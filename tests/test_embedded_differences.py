"""The table of allowed differences says what the comparison of the servers allows, no more and no less."""

import json
import re
from pathlib import Path

from integration_tests.differential.allowed import ALLOWED, explanation
from integration_tests.differential.calls import BAD_TEXT, Call, Marks, body_of, call_of
from integration_tests.differential.compare import OPAQUE, compare
from tubemq_spark.protocol.pb import broker_pb2

ROOT = Path(__file__).parent.parent
TABLE = (ROOT / "docs" / "embedded-differences.md").read_text(encoding="utf-8")
KEPT = json.loads((ROOT / "integration_tests" / "differential" / "kept.json").read_text(encoding="utf-8"))


def test_the_table_has_the_ids_of_the_code():
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|", TABLE, re.MULTILINE)

    assert len(rows) == len(set(rows))
    assert set(rows) == {allowed.id for allowed in ALLOWED}


def test_every_row_is_argued():
    rows = [line.split("|")[1:-1] for line in TABLE.splitlines() if line.startswith("| `")]

    assert all(len(cells) == 5 and all(cell.strip() for cell in cells) for cells in rows)


def test_every_number_that_is_not_compared_is_named():
    assert all(f"`{name}`" in TABLE for name in OPAQUE)


def test_every_difference_is_shown_by_a_kept_sequence():
    shown = {row for kept in KEPT for row in kept["allowed"]}

    assert shown == {allowed.id for allowed in ALLOWED if not allowed.by_time}


def test_kept_sequences_can_be_made():
    marks = Marks("7", "127.0.0.1:1", lambda _topic, _store: 28, {})

    for kept in KEPT:
        for plain in kept["calls"]:
            call = call_of(plain)
            assert call.plain() == plain
            assert isinstance(body_of(call, marks), bytes)


def fetch(**fields):
    return Call(
        "broker", 2, 17, {"clientId": "c", "groupName": "g", "topicName": "dense", "partitionId": 0} | fields
    )


def test_marks_become_real():
    call = Call(
        "broker",
        2,
        15,
        {
            "clientId": "c_{run}",
            "topicName": " dense ",
            "partitionId": 10_002,
            "currOffset": {"base": -28},
            "qryPriorityId": {"known": "nothing"},
        },
    )
    ends = {("dense", 1): 280}
    message = broker_pb2.RegisterRequestC2B()

    message.MergeFromString(body_of(call, Marks("7", "host:1", lambda *key: ends[key], {})))

    assert (message.clientId, message.currOffset, message.qryPriorityId) == ("c_7", 252, -2)


def test_a_body_can_be_spoilt():
    marks = Marks("7", "host:1", lambda _topic, _store: 0, {})
    sound = body_of(fetch(), marks)

    assert body_of(Call("broker", 2, 17, fetch().fields, cut=3), marks) == sound[:-3]
    assert body_of(Call("broker", 2, 17, fetch().fields, tail="00ff"), marks) == sound + b"\x00\xff"
    assert b"\xff\xfe\xfd" in body_of(fetch(clientId=BAD_TEXT), marks)


def test_a_field_that_is_absent_differs_from_one_that_is_not():
    found = compare(fetch(), {"errCode": 200}, {"errCode": 200, "requireAuth": False})

    assert [str(difference) for difference in found] == ["method 17, requireAuth: embedded None, real False"]


def test_what_no_row_covers_is_not_explained():
    (success,) = compare(fetch(), {"success": True, "errCode": 200}, {"success": False, "errCode": 200})

    assert explanation(success) is None


def test_a_row_covers_its_answers_only():
    said = {"success": True, "currDataDlt": 0}
    (lag,) = compare(fetch(), said, said | {"currDataDlt": 57})
    (failed,) = compare(fetch(), said | {"success": False}, said | {"success": False, "currDataDlt": 57})

    assert explanation(lag).id == "lag-in-memory"
    assert explanation(failed) is None


def test_a_missing_partition_is_one_that_the_topic_does_not_have():
    for partition_id, is_missing in {0: False, 1: True, 10_000: True, -1: True}.items():
        (difference,) = compare(fetch(partitionId=partition_id), {"errCode": 1}, {"errCode": 2})
        assert (explanation(difference) is not None) == is_missing
