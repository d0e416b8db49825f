"""The table of allowed differences says what the comparison of the servers allows, no more and no less."""

import json
import re
from pathlib import Path

from integration_tests.differential.allowed import ALLOWED, ALLOWED_BY_DEFAULT, explanation
from integration_tests.differential.calls import BAD_TEXT, Call, Marks, body_of, call_of
from integration_tests.differential.compare import OPAQUE, compare
from tubemq_spark.protocol.pb import broker_pb2

ROOT = Path(__file__).parent.parent
TABLE = (ROOT / "docs" / "testing" / "embedded-differences.md").read_text(encoding="utf-8")
KEPT = json.loads((ROOT / "integration_tests" / "differential" / "kept.json").read_text(encoding="utf-8"))


def test_the_table_has_the_ids_of_the_code():
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|", TABLE, re.MULTILINE)

    assert len(rows) == len(set(rows))
    assert set(rows) == {allowed.id for allowed in (*ALLOWED, *ALLOWED_BY_DEFAULT)}


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


def test_bytes_ahead_may_differ_by_what_the_logs_differ():
    """Where a server refused a message, a filler of another length stands in its log."""
    said, more = {"currDataDlt": 1_000}, {"currDataDlt": 1_020}

    assert compare(fetch(), more, said, unlike_bytes=20) == []
    (difference,) = compare(fetch(), more, said, unlike_bytes=19)
    assert difference.path == "currDataDlt"


def test_what_no_row_covers_is_not_explained():
    (success,) = compare(fetch(), {"success": True, "errCode": 200}, {"success": False, "errCode": 200})

    assert explanation(success) is None


def test_a_row_covers_its_answers_only():
    said = {"success": True, "errCode": 200, "currDataDlt": 0}
    (lag,) = compare(fetch(), said, said | {"currDataDlt": 57})
    (failed,) = compare(fetch(), said | {"success": False}, said | {"success": False, "currDataDlt": 57})

    assert explanation(lag).id == "lag-in-memory"
    assert explanation(failed) is None


FAILED = {"status": 1, "exception": "java.lang.reflect.InvocationTargetException", "text": ""}
"""How a handler's exception is answered, whatever it was."""


def explained(call, embedded, real):
    """Return the rows that explain what differs; None stands for a difference that none does."""
    rows = [explanation(difference) for difference in compare(call, embedded, real)]
    assert rows
    return {row.id if row else None for row in rows}


def call_to(method, **fields):
    return Call("broker" if method in range(13, 19) else "master", 2, method, fields)


def subscribing(*held):
    return {"clientId": "c", "groupName": "g", "topicList": ["dense"], "subscribeInfo": list(held)}


HELD = "1:{broker}#dense:0"
SOUND = (
    call_to(4, **subscribing(f"c_{{run}}@g_{{run}}#{HELD}"), topicCondition=["dense#red,blue"]),
    call_to(5, **subscribing(f"c_{{run}}@g_{{run}}#{HELD}"), reportSubscribeInfo=True),
    call_to(5, **subscribing("c@g#1:10.0.0.1:8123#dense:0")),
    call_to(16, clientId="c", groupName="g", partitionInfo=[HELD, "7:elsewhere:1#shared:10001"]),
    call_to(20, clientId="c", topicCondition=["dense#red"], subRepInfo={"partSubInfo": ["dense#1:0,1:1"]}),
    call_to(21, clientId="c", subRepInfo={"partSubInfo": ["dense#1:0"]}),
)


def test_no_row_explains_anything_of_sound_calls_that_pack_partitions():
    answers = (
        ({"success": True, "errCode": 200}, {"success": False, "errCode": 411}),
        ({"success": False, "errCode": 400}, {"success": True, "errCode": 200}),
        ({"errCode": 200, "hasPartFailure": True}, {"errCode": 200, "hasPartFailure": False}),
        (FAILED, {"success": True, "errCode": 200}),
        ({"success": True, "errCode": 200}, FAILED),
    )
    for call in SOUND:
        for embedded, real in answers:
            assert explained(call, embedded, real) == {None}


def test_malformed_packed_texts_may_fail_but_not_otherwise():
    real = {"success": True, "errCode": 200}
    for text in ("", f"c@g#{HELD[:-2]}", f"c@g#{HELD}:1", "c@g#1:{other}#dense:0", "c@g#1:{broker}#dense:-1"):
        call = call_to(5, **subscribing(text))
        assert explained(call, FAILED, real) == {"packed-texts"}
        assert explained(call, {"success": False, "errCode": 500}, real) == {None}
    assert explained(call_to(1, **subscribing("")), FAILED, real) == {None}


def test_java_alone_tells_a_client_in_two_groups_of_both_in_the_heartbeats_of_either():
    call = call_to(5, clientId="client_{run}_a", groupName="group_{run}_y")
    nothing = {"success": True, "errCode": 200}

    def told(of):
        return nothing | {
            "event": "present",
            "event.opType": 2,
            "event.subscribeInfo.0": f"client_000863_a@{of}#{HELD}",
        }

    assert explained(call, nothing, told("group_000863_x")) == {"balancing-time"}
    assert explained(call, told("group_000863_y"), nothing) == {"balancing-time"}
    assert explained(call, told("group_000863_x"), nothing) == {None}
    assert explained(call, nothing, told("another")) == {None}


def test_a_filter_without_types_may_fail_at_java_only():
    call = call_to(20, clientId="c", groupName="g", topicCondition=["dense#"])

    assert explained(call, {"errCode": 200}, FAILED) == {"packed-texts"}
    assert explained(call, {"errCode": 500}, FAILED) == {None}


HOSTILE = (
    fetch(partitionId=1),
    fetch(clientId=BAD_TEXT),
    fetch(clientId="\x01"),
    fetch(topicName="__offset_history__"),
    Call("broker", 2, 17, fetch().fields, tail="00"),
    *(call_to(method, topicName="dense", partitionId=10_000) for method in (13, 15, 18)),
)


def test_no_row_but_that_of_packed_texts_hides_an_internal_error():
    for call in HOSTILE:
        assert explained(call, FAILED, {"success": True, "errCode": 200}) == {None}


def test_no_row_hides_a_wrong_code():
    for call in HOSTILE:
        for code in (401, 411, 500, 503):
            embedded = {"success": False, "errCode": code, "errMsg": "something"}
            assert explained(call, embedded, {"success": True, "errCode": 200}) == {None}


def test_the_history_of_offsets_is_empty_here_and_may_be_read_from_java():
    nothing, something = {"success": False, "errCode": 404}, {"success": True, "errCode": 200}

    assert explained(fetch(topicName="__offset_history__"), nothing, something) == {"offset-history"}
    assert explained(fetch(topicName="__offset_history__"), something, nothing) == {None}
    assert explained(fetch(), nothing, something) == {None}


def test_a_missing_partition_is_one_that_the_topic_does_not_have():
    said = {"success": False, "errCode": 500}
    for partition_id, is_missing in {0: False, 1: True, 10_000: True, -1: True}.items():
        text = f"Get the store of topic dense in partition {partition_id} failure!"
        found = explained(fetch(partitionId=partition_id), said | {"errMsg": text}, {"errCode": 200})
        assert found == ({"missing-partition"} if is_missing else {None})


def test_a_missing_partition_is_refused_in_one_way_each():
    absent = "partitionId dense-1 not existed, please check your configure"
    wrong = "Register broker failure!, exception is Wrong partition value 1,valid partitions in (0,0)"
    accepted = {"success": True, "errCode": 200}
    for method, code, text, stored in (
        (13, 403, absent, accepted | {"errMsg": "<its message id>"}),
        (15, 500, wrong, accepted),
        (18, 403, absent, accepted),
    ):
        call = call_to(method, topicName="dense", partitionId=1)
        refused = {"success": False, "errCode": code, "errMsg": text}
        assert explained(call, refused, stored) == {"missing-partition"}
        assert explained(call, refused | {"errCode": 400}, stored) == {None}


def test_a_name_that_separates_fields_is_refused_where_events_would_carry_it():
    text = "groupName a#b has a character that separates fields!"
    refused, real = {"success": False, "errCode": 400, "errMsg": text}, {"success": True, "errCode": 200}

    assert explained(call_to(4, groupName="a#b"), refused, real) == {"separators-in-names"}
    assert explained(call_to(4, groupName="a#b"), refused | {"errCode": 500}, real) == {None}
    assert explained(call_to(20, groupName="a#b"), refused, real) == {None}


def test_a_client_that_reports_must_be_told_the_layout_as_by_java():
    real = {"errCode": 200, "topicMetaInfoId": 1, "topicMetaInfoList.0": "dense#1:1:1:1"}
    silent, reporting = (
        call_to(21, clientId="c", subRepInfo={"reportSubInfo": value, "partSubInfo": ["dense#1:0"]})
        for value in (False, True)
    )

    assert explained(silent, {"errCode": 200}, real) == {"reports-by-client"}
    assert explained(silent, {"errCode": 411}, real) == {None}
    assert explained(reporting, {"errCode": 200}, real) == {None}


def test_a_control_character_is_a_missing_name_and_a_bad_text_a_message_that_does_not_parse():
    real = {"success": True, "errCode": 200}
    missing = {"success": False, "errCode": 400, "errMsg": "Request miss necessary clientId data!"}
    unreadable = {"exception": "com.google.protobuf.InvalidProtocolBufferException", "text": ""}

    assert explained(fetch(clientId="\x01"), missing, real) == {"control-characters"}
    assert explained(fetch(clientId="\x01b"), missing, real) == {None}
    assert explained(fetch(clientId=BAD_TEXT), unreadable | {"status": 2}, real) == {"strict-protobuf"}
    assert explained(fetch(clientId=BAD_TEXT), unreadable | {"status": 1}, real) == {None}


UNREADABLE = {"status": 2, "exception": "com.google.protobuf.InvalidProtocolBufferException", "text": ""}


def test_only_what_java_alone_reads_may_be_refused_as_unreadable():
    """Not a body that is sound for Python too, and not bytes that protobuf does not take for text."""
    real = {"success": True, "errCode": 200}
    sound_tails = ("", "a00101", "aa01026869", "a90100000000000000ff")
    java_only_tails = ("e2acc6fdfc6b01f0", "0a02fffe", "aa01ffffffff1f")
    unreadable_tails = ("a0", "0a05ff", "07")
    for tails, expected in (
        (sound_tails, {None}),
        (java_only_tails, {"strict-protobuf"}),
        (unreadable_tails, {None}),
    ):
        for tail in tails:
            call = Call("broker", 2, 17, fetch().fields, tail=tail)
            assert explained(call, UNREADABLE, real) == expected, tail

    assert explained(call_to(13, topicName=BAD_TEXT, data=b""), UNREADABLE, real) == {"strict-protobuf"}
    assert explained(call_to(13, data={"text": BAD_TEXT, "times": 1}), UNREADABLE, real) == {None}
    nested = call_to(21, clientId="c", subRepInfo={"partSubInfo": [BAD_TEXT]})
    assert explained(nested, UNREADABLE, real) == {"strict-protobuf"}


def test_a_lag_may_only_be_larger_at_java_and_by_a_message_at_least():
    said = {"success": True, "errCode": 200, "currDataDlt": 500}
    for real_lag, expected in ((557, "lag-in-memory"), (552, None), (499, None), (0, None)):
        assert explained(fetch(), said, said | {"currDataDlt": real_lag}) == {expected}


def test_an_event_that_comes_at_another_moment_must_be_one_for_this_client():
    said = {"success": True, "errCode": 200, "notAllocated": False}
    beat = call_to(5, clientId="client_{run}_a", groupName="group_{run}_x")

    def event(client="client_000012_a", partition="dense:0", kind=1):
        held = f"{client}@group_000012_x#1:{{broker}}#{partition}"
        return said | {"event": "present", "event.opType": kind, "event.subscribeInfo.0": held}

    assert explained(beat, event(), said) == {"balancing-time"}
    assert explained(beat, said, event()) == {"balancing-time"}
    assert explained(beat, event(partition="shared:10001"), event(kind=10)) == {"balancing-time"}
    for wrong in (event(client="client_000012_b"), event(partition="dense:1"), event(kind=3)):
        assert explained(beat, wrong, said) == {None}
        assert explained(beat, said, wrong) == {None}


def answer_with(*payloads, code=200):
    found = {f"messages.{number}.payLoadData": payload for number, payload in enumerate(payloads)}
    return {"success": code == 200, "errCode": code, **found} | {
        f"messages.{number}": "present" for number in range(len(payloads))
    }


def explained_by_default(embedded, real):
    rows = [explanation(difference, by_default=True) for difference in compare(fetch(), embedded, real)]
    return {row.id if row else None for row in rows}


def test_default_settings_may_show_more_messages_but_no_others():
    assert explained_by_default(answer_with(b"a", b"b"), answer_with(b"a")) == {"shows-more"}
    assert explained_by_default(answer_with(b"a"), answer_with(code=404)) == {"shows-more"}
    for embedded, real in (
        (answer_with(b"a"), answer_with(b"a", b"b")),
        (answer_with(b"b", b"c"), answer_with(b"a")),
        (answer_with(b"b"), answer_with(b"a")),
        (answer_with(b"a", code=411), answer_with(code=404)),
    ):
        assert explained_by_default(embedded, real) == {None}


def test_what_default_settings_may_do_is_not_allowed_to_a_server_set_as_java():
    answers = answer_with(b"a", b"b"), answer_with(b"a")
    assert explained(fetch(), *answers) == {None}
