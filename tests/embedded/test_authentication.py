"""Who may use a master and a broker that demand names and passwords."""

import time

import pytest

from tests.cases import in_one_test
from tests.embedded.wire import MasterClient
from tubemq_spark.embedded.authentication import Authentication
from tubemq_spark.embedded.dispatch import RefusedError
from tubemq_spark.embedded.server import EmbeddedSettings
from tubemq_spark.errors import OptionError
from tubemq_spark.protocol import messages
from tubemq_spark.protocol.pb import common_pb2

NOW_MS = 1_700_000_000_000
USERS = {"ann": "secret"}


def checker(users=USERS, producers=True, consumers=True):
    settings = EmbeddedSettings(
        authenticate_producers=producers, authenticate_consumers=consumers, users=users
    )
    return Authentication(settings, lambda: NOW_MS)


def proof(user="ann", password="secret", age_ms=0, **fields):
    info = messages.authenticate_info(user, password, NOW_MS - age_ms, 42)
    for name, value in fields.items():
        setattr(info, name, value)
    return common_pb2.MasterCertificateInfo(authInfo=info)


def token(user="ann", password="secret", age_ms=0):
    return messages.broker_token(user, password, NOW_MS - age_ms, 42)


def text_of(check, *arguments, **keywords):
    with pytest.raises(RefusedError) as refused:
        check(*arguments, **keywords)
    assert refused.value.code == 415
    return refused.value.text


@pytest.mark.parametrize(("producers", "consumers"), [(True, False), (False, True), (False, False)])
def test_each_kind_is_asked_only_where_it_is_switched_on(producers, consumers):
    asked = checker(USERS if producers or consumers else {}, producers, consumers)
    nothing = common_pb2.MasterCertificateInfo()
    for producer, required in ((True, producers), (False, consumers)):
        if required:
            text_of(asked.at_master, nothing, producer=producer)
            text_of(asked.at_broker, common_pb2.AuthorizedInfo(visitAuthorizedToken=1), producer=producer)
        else:
            assert asked.at_master(nothing, producer=producer) == ""
            asked.at_broker(common_pb2.AuthorizedInfo(visitAuthorizedToken=1), producer=producer)


def test_a_proof_becomes_what_brokers_are_shown():
    given = checker().at_master(proof(), producer=True)
    assert given == token()
    checker().at_broker(
        common_pb2.AuthorizedInfo(visitAuthorizedToken=1, authAuthorizedToken=given), producer=True
    )
    again = common_pb2.MasterCertificateInfo(authorizedToken=given)
    assert checker().at_master(again, producer=True) == given


@pytest.mark.parametrize(
    ("age_ms", "fine"), [(0, True), (20_000, True), (20_001, False), (-20_000, True), (-20_001, False)]
)
def test_a_proof_grows_old(age_ms, fine):
    if fine:
        checker().at_master(proof(age_ms=age_ms), producer=False)
    else:
        text = text_of(checker().at_master, proof(age_ms=age_ms), producer=False)
        assert text == "Illegal value: timestamp out of effective period in authenticateToken!"


NO_MATCH = "Illegal value: userName or password is not correct!"
NO_TOKEN = "Illegal value: authAuthorizedToken has another form!"


def with_token(text):
    return common_pb2.MasterCertificateInfo(authorizedToken=text)


@in_one_test(
    ("shown", "text"),
    [
        (proof(userName=" "), "Illegal value: authInfo.userName is Blank!"),
        (proof(signature=""), "Illegal value: authInfo.signature is Blank!"),
        (proof(password="wrong"), NO_MATCH),
        (proof(user="eve", password=""), NO_MATCH),
        (with_token(" "), "Illegal value: authInfo.userName is Blank!"),
        (with_token(token(password="wrong")), NO_MATCH),
        (with_token("nonsense"), NO_TOKEN),
        (with_token("ann x 1 y"), NO_TOKEN),
        (with_token(f"ann {'1' * 5000} 1 y"), NO_TOKEN),
    ],
)
def test_what_is_no_proof(shown, text):
    assert text_of(checker().at_master, shown, producer=True) == text


@pytest.mark.parametrize(("user", "nonce"), [("ann", -5), ("ann lee", 42), ("ann", 0)])
def test_a_registered_client_is_let_in_afterwards(user, nonce):
    asked = checker(users={user: "secret"})
    shown = messages.authenticate_info(user, "secret", NOW_MS, nonce)
    given = asked.at_master(common_pb2.MasterCertificateInfo(authInfo=shown), producer=True)
    asked.at_broker(
        common_pb2.AuthorizedInfo(visitAuthorizedToken=1, authAuthorizedToken=given), producer=True
    )


def test_without_users_only_the_form_and_the_time_count():
    anybody = checker(users={})
    given = anybody.at_master(proof(user="eve", password="x"), producer=True)
    assert given.startswith("eve ")
    anybody.at_broker(
        common_pb2.AuthorizedInfo(visitAuthorizedToken=1, authAuthorizedToken="whatever"), producer=True
    )
    text_of(anybody.at_master, proof(age_ms=30_000), producer=True)
    text_of(anybody.at_master, common_pb2.MasterCertificateInfo(), producer=True)


def test_a_token_of_the_broker_does_not_grow_old():
    shown = common_pb2.AuthorizedInfo(visitAuthorizedToken=1, authAuthorizedToken=token(age_ms=10**9))
    checker().at_broker(shown, producer=False)


def test_passwords_that_no_client_has_to_show_are_refused():
    with pytest.raises(OptionError, match=r"users is given alone.*authenticate_producers=True") as refused:
        EmbeddedSettings(users=USERS)
    assert "secret" not in str(refused.value)
    for demanded in ({"authenticate_producers": True}, {"authenticate_consumers": True}):
        assert EmbeddedSettings(users=USERS, **demanded).users == USERS
    assert EmbeddedSettings(users={}).users == {}


def test_passwords_are_not_shown():
    settings = EmbeddedSettings(authenticate_producers=True, users=USERS)
    assert "secret" not in repr(settings)
    assert "secret" not in repr(checker())


# --- over the wire


@pytest.fixture
def locked(start, closing, connect):
    settings = EmbeddedSettings(authenticate_producers=True, authenticate_consumers=True, users=USERS)
    server = start(settings=settings)
    return closing.enter_context(MasterClient(server.master)), connect(server)


def fresh(user="ann", password="secret"):
    info = messages.authenticate_info(user, password, time.time_ns() // 1_000_000, 7)
    return common_pb2.MasterCertificateInfo(authInfo=info)


def test_strangers_are_refused_everywhere(locked):
    master, broker = locked
    refused = [
        master.register_producer(),
        master.producer_heartbeat(),
        master.close_producer(),
        master.join_group(),
        master.group_heartbeat(),
        master.register_consumer(),
        master.consumer_heartbeat(),
        master.layout(),
        master.close_consumer(),
        broker.try_send(),
        broker.register(),
        broker.unregister(),
        broker.heartbeat(),
    ]
    assert [answer.errCode for answer in refused] == [415] * len(refused)
    assert master.register_producer("", authInfo=fresh(password="wrong")).errCode == 415, "before all else"


def test_who_shows_a_proof_can_work(locked):
    master, broker = locked
    produced = master.register_producer(authInfo=fresh())
    shown = {"visitAuthorizedToken": 1, "authAuthorizedToken": produced.authorizedInfo.authAuthorizedToken}
    assert broker.try_send(authInfo=shown).success
    # Later a Java producer shows what it got.
    known = common_pb2.MasterCertificateInfo(authorizedToken=shown["authAuthorizedToken"])
    assert master.producer_heartbeat(topics=["demo"], authInfo=known).success
    assert master.join_group(authInfo=fresh()).success
    assert master.group_heartbeat(authInfo=fresh()).success
    assert broker.register(authInfo=shown).success
    assert broker.heartbeat(authInfo=shown).success
    assert broker.fetch().success, "a fetch shows nothing"


def test_without_switches_nothing_is_said_of_it(tubemq, master):
    answer = master.register_producer(authInfo=fresh())
    assert not answer.authorizedInfo.HasField("authAuthorizedToken")
