"""The table of result codes is complete, and errors made from it say what to do."""

import pickle

import pytest
from hypothesis import given, strategies as st

from tests import strategies as own
from tests.cases import in_one_test
from tubemq_spark.errors import RpcError
from tubemq_spark.protocol.errcodes import ErrCode, advice, lookup, rpc_error

CODES = (
    "200 201 301 400 401 402 403 404 405 406 407 408 410 411 412 415 419 420 421 422 423 424 425 426 427 428 "
    "429 430 431 440 441 442 443 444 445 450 452 455 500 503 510 599"
)


def test_every_code_of_the_protocol_is_there():
    assert {int(code) for code in ErrCode} == set(map(int, CODES.split()))


@in_one_test("code", list(ErrCode))
def test_every_code_has_a_sound_entry(code):
    entry = lookup(code)
    assert (entry.code, entry.name) == (code, code.name)
    assert type(entry.code) is int
    for text in (entry.meaning, entry.hint):
        assert text == text.strip()
        assert text[0].islower() or text.startswith(("TubeMQ",))
        assert text[-1] not in ".;"


@in_one_test(
    ("code", "retriable", "refresh"),
    [
        (ErrCode.MOVED, True, False),
        (ErrCode.BAD_REQUEST, False, False),
        (ErrCode.UNAUTHORIZED, False, False),
        (ErrCode.FORBIDDEN, False, True),
        (ErrCode.NOT_FOUND, True, False),
        (ErrCode.PARTITION_OCCUPIED, True, False),
        (ErrCode.HB_NO_NODE, True, True),
        (ErrCode.DUPLICATE_PARTITION, True, True),
        (ErrCode.CERTIFICATE_FAILURE, False, False),
        (ErrCode.SERVER_RECEIVE_OVERFLOW, True, False),
        (ErrCode.CLIENT_SHUTDOWN, False, False),
        (ErrCode.CLIENT_HIGH_FREQUENCY_REQUEST, True, False),
        (ErrCode.PARTITION_UNSUBSCRIBABLE, True, True),
        (ErrCode.TOPIC_NOT_DEPLOYED, False, True),
        (ErrCode.CONSUME_GROUP_FORBIDDEN, False, False),
        (ErrCode.SERVER_CONSUME_SPEED_LIMIT, True, False),
        (ErrCode.CONSUME_CONTENT_FORBIDDEN, False, False),
        (ErrCode.INTERNAL_SERVER_ERROR, True, False),
        (ErrCode.SERVICE_UNAVAILABLE, True, False),
    ],
)
def test_reactions_are_those_of_the_protocol(code, retriable, refresh):
    entry = lookup(code)
    assert (entry.retriable, entry.refresh_metadata) == (retriable, refresh)


@given(own.int32s.filter(lambda code: code not in set(ErrCode)))
def test_unknown_codes_have_an_entry_too(code):
    entry = lookup(code)
    assert (entry.code, entry.name, entry.retriable) == (code, "UNKNOWN", False)


def test_an_error_is_a_sentence_with_a_next_step():
    error = rpc_error(
        410, "Partition has been registered by other", peer="broker 1", during="registering demo/1:0"
    )
    assert str(error) == (
        "[TUBEMQ_RPC] broker 1 answered 410 (PARTITION_OCCUPIED) while registering demo/1:0: "
        "Partition has been registered by other; it is freed when its holder closes or is silent for 30 s."
    )
    assert error.code == 410
    assert error.retriable


@in_one_test(
    ("code", "condition", "setting"),
    [
        (424, "TUBEMQ_GROUP_CONFLICT.CONSUME_TYPE", "use the kind of consumer"),
        (425, "TUBEMQ_GROUP_CONFLICT.TOPICS", "set topics "),
        (426, "TUBEMQ_GROUP_CONFLICT.MESSAGE_TYPES", "set message_types "),
        (427, "TUBEMQ_GROUP_CONFLICT.SESSION_KEY", "set session_key "),
        (428, "TUBEMQ_GROUP_CONFLICT.SELECT_BIG", "set select_big "),
        (429, "TUBEMQ_GROUP_CONFLICT.SOURCE_COUNT", "set source_count "),
        (430, "TUBEMQ_GROUP_CONFLICT.NODE_ID", "set node_id "),
        (450, "TUBEMQ_GROUP_FORBIDDEN", "authorise the group"),
        (455, "TUBEMQ_MESSAGE_TYPES_FORBIDDEN", "set message_types "),
        (415, "TUBEMQ_NOT_AUTHENTICATED", "check username and password"),
    ],
)
def test_what_the_user_has_to_correct_has_a_condition_and_is_named(code, condition, setting):
    error = rpc_error(code, "no", peer="master m:8715", during="registering group etl")
    assert error.condition == condition
    assert setting in str(error).rpartition("; ")[2]
    assert f"master m:8715 answered {code} ({ErrCode(code).name}) while registering group etl: no" in str(
        error
    )
    assert error.code == code
    assert not error.retriable, "asking again would only be refused again"


@in_one_test(
    ("words", "told"),
    [
        ("Requested topic [[klicks]] not deployed!", "Topic 'klicks' does not exist, as "),
        ("Requested topic [[a1, b_2]] not deployed!", "Topics 'a1', 'b_2' do not exist, as "),
        (
            f"Requested topic [[{', '.join(f't{number}' for number in range(12))}]] not deployed!",
            "'t8', 't9' and 2 more do not exist, as ",
        ),
        ("", "A topic does not exist (the topic does not exist, while registering group etl), as "),
        ("[[", "A topic does not exist ([[, while registering group etl), as "),
    ],
)
def test_topics_that_do_not_exist_are_named(words, told):
    error = rpc_error(431, words, peer="master m:8715", during="registering group etl")
    assert error.condition == "TUBEMQ_TOPIC_NOT_DEPLOYED"
    assert f"{told}master m:8715 says (431); create the topic, or correct its name." in str(error)
    assert (error.code, error.retriable) == (431, False)


@in_one_test(
    ("code", "words", "hint"),
    [
        (
            503,
            "Write StoreService temporary unavailable! [Errno 28] No space left on device",
            "free space on the server's disk",
        ),
        (500, "java.io.IOException: No space left on device", "free space on the server's disk"),
        (503, "Write StoreService temporary unavailable!", "check the server's disk, whose errors have stop"),
        (503, "Read StoreService temporary unavailable! [Errno 5] I/O", "check the server's disk, whose"),
        (503, "StoreService temporary unavailable!", "start it, or wait until it is back"),
    ],
)
def test_what_to_do_about_a_disk_fits_what_is_wrong_with_it(code, words, hint):
    assert advice(code, words).startswith(hint)
    error = rpc_error(code, words, peer="broker b:8123", during="sending")
    assert str(error).rpartition("; ")[2].startswith(hint)


@in_one_test(
    ("text", "cause", "told"),
    [
        ("Illegal value: userName or password is not correct!", "WRONG_PASSWORD", "correct username and"),
        ("Illegal value: userName is not equal in authenticateToken!", "WRONG_PASSWORD", "correct username"),
        (
            "Illegal value: timestamp out of effective period in authenticateToken!",
            "CLOCK",
            "set the clocks of this machine and of the master",
        ),
        ("Visit Authorized Token is invalid!", "VISIT_TOKEN", "masters give a new one"),
        ("Illegal value: authInfo.userName is Blank!", "NO_CREDENTIALS", "set username and password"),
        ("Illegal value: authInfo.signature is Blank!", "NO_CREDENTIALS", "set username and password"),
        ("authAuthorizedToken is Blank!", "NO_CREDENTIALS", "set username and password"),
        ("Authorized Info is required!", "NO_CREDENTIALS", "set username and password"),
        ("Server required MasterCertificateInfo!", "NO_CREDENTIALS", "set username and password"),
        ("Illegal value: AuthenticateInfo is null!", "NO_CREDENTIALS", "set username and password"),
    ],
)
def test_a_certificate_failure_is_told_by_its_cause(text, cause, told):
    """The words are those of Java's SimpleCertificateMasterHandler and SimpleCertificateBrokerHandler."""
    error = rpc_error(415, text, peer="master m:8715", during="registering")
    assert error.condition == f"TUBEMQ_NOT_AUTHENTICATED.{cause}"
    assert f": {text.rstrip('!')}; {told}" in str(error)


@pytest.mark.parametrize("text", ["", "  "])
def test_a_blank_text_is_replaced_by_the_meaning(text):
    assert "the store's buffers are full; send slower." in str(rpc_error(419, text, peer="b", during="d"))


def test_the_peers_full_stop_is_not_doubled():
    assert ": stopped; start it" in str(rpc_error(503, "stopped. ", peer="b", during="d"))


@given(st.sampled_from(ErrCode) | own.int32s)
def test_errors_keep_code_and_retriability_when_pickled(code):
    error = rpc_error(code, "text", peer="p", during="d")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is RpcError
    assert (str(again), again.code, again.retriable) == (str(error), code, lookup(code).retriable)
