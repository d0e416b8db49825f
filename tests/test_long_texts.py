"""Every reader of a text from elsewhere takes work in proportion to its length, and refuses in its own words.

A text is 64 KiB of one character: alone, and where the reader's grammar expects something. The work is
compared with that of a loop over the characters, so the bound is one of this machine at this moment.
"""

import contextlib
import itertools
import re
import ssl
import string
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import tubemq_spark
from tubemq_spark.cli import verification
from tubemq_spark.cli.embedded import TOPIC_TEXT
from tubemq_spark.client.config import group_of_reader
from tubemq_spark.client.consumer.flow_control import parse_flow_rules
from tubemq_spark.client.consumer.values import parse_context
from tubemq_spark.client.producer import outgoing
from tubemq_spark.client.urls import parse_url
from tubemq_spark.embedded import dispatch
from tubemq_spark.embedded.admin import fields, parameters
from tubemq_spark.embedded.admin.fields import read_rules
from tubemq_spark.embedded.authentication import Authentication
from tubemq_spark.embedded.broker.flow_control import RuleError, parse_rules
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.dispatch import RefusedError
from tubemq_spark.embedded.master.groups import parse_starts
from tubemq_spark.errors import TubeMQError
from tubemq_spark.files import folder_uri, manifests
from tubemq_spark.gateway import policy, upstream
from tubemq_spark.model import Endpoint
from tubemq_spark.net import http_client, http_server, tls_errors
from tubemq_spark.offsets import checkpoint_log, ledger, offset_spec, subscription
from tubemq_spark.offsets.message_time import minutes_of
from tubemq_spark.options import option as option_kinds
from tubemq_spark.protocol import errcodes, inlong_msg, messages, packed_strings, payload, rpc
from tubemq_spark.protocol.pb import broker_pb2, common_pb2
from tubemq_spark.settings import kinds

LENGTH = 16 << 10
MOST_WORK = 50
"""Times the work of a loop over the characters; a quadratic reader takes thousands of times as much."""
MOST_GROWTH = 24
"""Times the work for an eighth of a text: in proportion it is 8, quadratic 64."""
RUNS = string.punctuation + " \t\n0Aaz\0\x1c\x85\u3000\U0001f600"
REFUSALS = (TubeMQError, RefusedError, RuleError)


def _parameters(read: Callable[[parameters.Parameters], object]) -> Callable[[str], object]:
    return lambda text: read(
        parameters.Parameters({"value": text, **dict.fromkeys(parameters._FIELDS, text)})
    )


def _token(text: str) -> None:
    settings = EmbeddedSettings(authenticate_producers=True, users={"ann": "secret"})
    Authentication(settings).at_broker(
        broker_pb2.SendMessageRequestP2B(
            authInfo=common_pb2.AuthorizedInfo(visitAuthorizedToken=1, authAuthorizedToken=text)
        ).authInfo,
        producer=True,
    )


def _listed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "fetch", lambda *_: text.encode())
    # The caller expects a ValueError, too.
    with contextlib.suppress(ValueError):
        upstream._listed_at("http://names/")


def _alert(text: str) -> str:
    error = ssl.SSLError(1, "broken off")
    error.reason = text
    return tls_errors.alert_of(error)


def _event(text: str) -> object:
    return messages.parse_event(common_pb2.EventProto(rebalanceId=1, opType=1, subscribeInfo=[text]))


def _refusal(text: str) -> None:
    for code in (errcodes.ErrCode.TOPIC_NOT_DEPLOYED, errcodes.ErrCode.SERVICE_UNAVAILABLE):
        errcodes.rpc_error(code, text, peer="broker 1", during="registering")


# What reads, and after which beginnings of a sound text something is expected of it.
PEERS: dict[str, tuple[Callable[[str], object] | None, tuple[str, ...]]] = {
    # Masters and brokers to clients, and clients to them.
    "broker info": (packed_strings.parse_broker_info, ("1:", "1:host:")),
    "topic route": (packed_strings.parse_topic_route, ("t#", "t#1:2:3", "t#1:2:3#")),
    "topic meta": (packed_strings.parse_topic_meta, ("t#", "t#1:2:3:1")),
    "topic condition": (packed_strings.parse_topic_condition, ("t#", "t#a,")),
    "partition": (packed_strings.parse_partition, ("1:", "1:h:1#", "1:h:1#t:")),
    "subscribe info": (packed_strings.parse_subscribe_info, ("a", "a@g", "a@g#1:h:1#t")),
    "rebalance event": (_event, ("a", "a@g#1:h:1#t:0")),
    "failure info": (packed_strings.parse_failure_info, ("411:", "411:1:h:1#")),
    "partitions of a report": (packed_strings.parse_part_sub_info, ("t#", "t#1:0,")),
    "flow rules, client": (parse_flow_rules, ("[", '[{"type":0,"rule":[{"start":"', '[{"type":')),
    "flow rules, broker": (parse_rules, ("[", '[{"type":0,"rule":[{"start":"', '[{"type":')),
    "starts of a bound group": (lambda text: parse_starts(text, {"t"}), ("1:t:", "1:t:0=")),
    "words of a refusal": (_refusal, ("[[", "[[t, ", "Read ")),
    "token": (_token, ("ann", "ann 1 ", "ann 1 2 ")),
    "trimmed text": (lambda text: dispatch.trimmed("clientId", text), ("a",)),
    "required text": (lambda text: dispatch.required("clientId", text, LENGTH), ("a",)),
    "envelope of a request": (lambda text: rpc.usual_request(text.encode()), ("\2\10\0",)),
    "envelope of an answer": (lambda text: rpc.usual_answer(text.encode()), ("\2\10\1",)),
    "alert": (_alert, ("TLSV1_", "SSLV3_ALERT_")),
    # Other producers' messages.
    "attributes": (payload.parse_attributes, ("a=", "a=b,")),
    "message time": (payload.is_message_time, ("2026",)),
    "hash": (payload.java_hash, ()),
    "attributes of InLong": (inlong_msg.parse_attributes, ("a=", "a=b&")),
    "time of a record": (lambda text: minutes_of(text, ZoneInfo("Europe/Berlin")), ("2026",)),
    "uid of a record": (lambda text: verification._UID.findall(text.encode()), ("a=b,", ",messageUid=")),
    "type of a message": (lambda text: outgoing._PLAIN.fullmatch(text.encode()), ("a",)),
    # Web calls.
    "parameter, text": (_parameters(lambda call: call.text("value")), ()),
    **{
        f"parameter, {name}": (
            _parameters(lambda call, name=name: call.items(name)),
            ("a", "1", "a,", "1.2."),
        )
        for name in ("topicName", "groupName", "filterConds", "brokerIp", "brokerId", "createUser")
    },
    "parameter, number": (_parameters(lambda call: call.number("brokerId", least=0, most=9)), ("1", "-")),
    "parameter, numbers": (_parameters(lambda call: call.numbers("brokerId")), ("1,", "-")),
    "parameter, flag": (_parameters(lambda call: call.flag("value", default=True)), ("1", "-")),
    "parameter, date": (_parameters(lambda call: call.date("value")), ("2026",)),
    "parameter, retention": (fields._retention_ms, ("delete,", "delete,1")),
    "parameter, flow rules": (_parameters(read_rules), ("[", '[{"type":')),
    "host of a web call": (lambda text: http_server.why_foreign(lambda _: text, {"h"}), ("h:", "http://")),
    # Name servers, and other gateways' clients.
    "list of masters": (None, ("host:1,", "host:")),
    "name of a group": (group_of_reader, ("a_", "a_r")),
    "address": (Endpoint.parse, ("h:", "tubemq://h:", "[")),
    "digest of a policy": (policy._DIGEST.fullmatch, ("a0",)),
    # Files that others wrote, and texts of options and URLs.
    "place": (folder_uri.FolderUri.parse, ("s3:", "s3://", "s3://a:b")),
    "place, shown": (folder_uri.redacted, ("s3://", "s3://a:b", "s3://a?")),
    "manifest": (lambda text: manifests.manifest_of(text, "file"), ("{", '{"v":', '{"v":1,"queryId":"')),
    "ledger": (lambda text: ledger.observations_of(text, "file"), ("{", '{"v":')),
    "checkpoint": (lambda text: checkpoint_log.OffsetLog.parse(f"v2\n{{}}\n{text}"), ("a:{", "a")),
    "offsets": (lambda text: offset_spec.parse_offset_spec(text, "startingOffsets"), ("{", '{"t":{"1:')),
    "assignment": (subscription.parse_assignment, ("{", '{"t":["1:')),
    "context": (parse_context, ("1:t:", "1:t:0@")),
    "URL": (parse_url, ("tubemq://h:1", "tubemq://h:1?group=", "tubemq://h:1?")),
    "duration": (option_kinds._DURATION.fullmatch, ("1", "1 ")),
    "size": (option_kinds._SIZE.fullmatch, ("1", "1 ")),
    "integer": (kinds.integer(0, 9).parse, ("1", "-")),
    "masters": (kinds.addresses(1).parse, ("h:1,", "h:")),
    "host": (kinds._HOST.fullmatch, ("h",)),
    "topics": (kinds.names(kinds.TOPIC_PATTERN, "topics").parse, ("a",)),
    "shape of a topic": (TOPIC_TEXT.fullmatch, ("a:", "a:1:")),
}

OWN_TEXTS = {
    "cli.parser": "patterns of the command line",
    "observe.listener": "the beginning of our own errors in those of Spark",
    "cli.consume": "escapes and templates of the command line",
    "cli.demo.run": "words of files of the demo's user",
    "cli.output": "names of our own columns, and our own errors",
    "cli.demo.command": "names of files of the demo's user",
    "offsets.subscription": "the user's own expression, over names of topics",
    "testing": "names of tests",
}
"""Modules with regular expressions that see nothing but what the user of the process wrote, or we did."""


def _work(read: Callable[[str], Any], text: str) -> float:
    """Return the CPU time of a reader."""
    before = time.thread_time()
    with contextlib.suppress(*REFUSALS):
        read(text)
    return time.thread_time() - before


def _loop(text: str) -> int:
    return sum(1 for _ in text)


@pytest.mark.parametrize("reader", PEERS)
def test_the_work_of_a_reader_is_in_proportion_to_the_text(reader, monkeypatch):
    read, beginnings = PEERS[reader]
    read = read or (lambda text: _listed(text, monkeypatch))
    most = MOST_WORK * min(_work(_loop, "a" * LENGTH) for _ in range(5))

    def is_slow(text: str, part: str) -> bool:
        work = _work(read, text)
        return work > most and work > MOST_GROWTH * _work(read, part)

    slow = []
    for run in RUNS:
        # With something behind the run it is not all stripped at once; without, it can be one long number.
        for before, behind in itertools.product(("", *beginnings), ("", "b:1")):
            text, part = (before + run * length + behind for length in (LENGTH, LENGTH // 8))
            # Repeated, as anything can happen to a busy machine once.
            if all(is_slow(text, part) for _ in range(2)):
                slow.append(text[:20])
    assert not slow


def test_every_module_with_regular_expressions_has_its_reader_in_the_table():
    package = Path(tubemq_spark.__file__).parent
    using = {
        str(path.relative_to(package).with_suffix("")).removesuffix("/__init__").replace("/", ".")
        for path in package.rglob("*.py")
        if re.search(r"\bre\.[a-z]+\(", path.read_text(encoding="utf-8"))
    }
    named = {
        "cli.embedded", "cli.verification", "client.consumer.values", "client.producer.outgoing",
        "client.config", "client.urls", "embedded.admin.parameters",
        "embedded.admin.fields", "embedded.authentication", "files.folder_uri",
        "gateway.upstream", "gateway.policy", "model", "net.tls_errors",
        "offsets.checkpoint_log", "offsets.notation", "options.option", "protocol.constants",
        "protocol.errcodes", "protocol.packed_strings", "protocol.payload", "protocol.rpc", "settings.kinds",
    }  # fmt: skip
    assert using == named | OWN_TEXTS.keys()
