"""``tubemq-spark consume``: the last messages, templates and decoded values, of a server."""

import io
import json
import subprocess
import sys

import pytest

from testkit.inlong_msg import container, snappy
from tubemq_spark.cli import main as cli
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.testing.client import TopicClient

MADE = "202601312359"


@pytest.fixture
def server():
    with EmbeddedTubeMQ(topics={"clicks": (1, 1), "shared": (1, 3)}) as running:
        yield running


@pytest.fixture
def send(server):
    with TopicClient(server.master, "sender") as client:
        yield lambda topic, partition, *values, **fields: client.send(
            topic, *values, partition=(1, partition), **{"message_time": MADE, **fields}
        )


@pytest.fixture
def consume(server, capfdbinary):
    def command(*arguments, code=0):
        capfdbinary.readouterr()
        assert cli.main(["consume", *arguments, "--master", server.master]) == code
        written = capfdbinary.readouterr()
        return written.err.decode() if code == 2 else written.out if code == 0 else written

    return command


def lines(out):
    return [json.loads(line) for line in out.splitlines()]


def test_the_last_messages_of_a_partition_are_exactly_so_many(consume, send):
    send("clicks", 0, *(str(number) for number in range(20)))
    assert consume("clicks", "--last", "3") == b"17\n18\n19\n"
    assert consume("clicks", "--last", "20").splitlines()[0] == b"0"
    assert len(consume("clicks", "--last", "99").splitlines()) == 20
    assert consume("clicks", "--last", "2", "--to", "140") == b"3\n4\n"
    assert consume("clicks", "--last", "3", "--count", "1") == b"17\n"
    assert "--last and --from" in consume("clicks", "--last", "3", "--from", "latest", code=2)


def test_an_offset_whose_message_is_gone_is_reported(server, consume, send):
    send("clicks", 0, "gone")
    server.apply_retention("clicks", older_than_ms=0)
    send("clicks", 0, "kept")
    written = consume("clicks", "--from", "0", code=1)
    assert (written.out, b"EXPIRED clicks/1:0 [0, 28)" in written.err) == (b"kept\n", True)
    written = consume("clicks", "--from", "0", "--to", "28", code=1)
    assert (written.out, b"EXPIRED clicks/1:0 [0, 28)" in written.err) == (b"", True)
    assert consume("clicks", "--from", "280") == consume("clicks", "--from", "0", "--to", "0") == b""
    assert consume("clicks") == b"kept\n"


def test_the_last_messages_are_found_among_those_of_other_partitions(consume, send):
    """Each partition has its last ones, though 300 of another one came behind them."""
    send("shared", 0, *(f"a{number}" for number in range(5)))
    send("shared", 1, *(f"b{number}" for number in range(300)))
    assert consume("shared", "--last", "2") == b"a3\na4\nb298\nb299\n"
    assert consume("shared", "--last", "7", "--partition", "1:0").splitlines()[0] == b"a0"


def test_the_last_messages_come_before_those_that_are_followed(server, send):
    send("clicks", 0, "1", "2", "3")
    how = ("--follow", "--last", "2", "--master", server.master)
    with subprocess.Popen(
        [sys.executable, "-m", "tubemq_spark", "consume", "clicks", *how], stdout=subprocess.PIPE
    ) as following:
        try:
            lines = [following.stdout.readline() for _ in range(2)]
            send("clicks", 0, "4")
            lines.append(following.stdout.readline())
        finally:
            following.kill()
    assert lines == [b"2\n", b"3\n", b"4\n"]


def test_a_template_prints_what_it_names(consume, send):
    send("clicks", 0, "x,y", attributes={"k": "v", "w": "z"}, message_type="red")
    send("clicks", 0, b"\xff")
    template = r"%t %p %o %T %y [%h] %S:%s%%\n\t"
    first, second = consume("clicks", "--format", template).split(b"\n\t")[:-1]
    assert first.startswith(b"clicks 1:0 0 202601312359 red [")
    assert b"k=v,w=z" in first
    assert first.endswith(b"] 3:x,y%")
    assert second.endswith(b"1:\xff%")
    assert b" 28 202601312359  [" in second
    assert consume("clicks", "--format", "%i,").split(b",")[0].isdigit()
    assert consume("clicks", "--format", r"%s\\n", "--count", "1") == rb"x,y\n"


def test_bytes_that_are_not_utf_8_delimit_and_format(consume, send):
    send("clicks", 0, "x", "y")
    assert consume("clicks", "--format", "%s\udcfe") == b"x\xfey\xfe"
    assert consume("clicks", "--delimiter", "\udcfe") == b"x\xfey\xfe"


@pytest.mark.parametrize("template", ["%z", "%", "%s %", "words", "%k"])
def test_a_placeholder_that_is_not_known_is_refused_with_those_that_are(template, refused):
    said = refused("consume", "clicks", "--format", template, "--master", "m")
    assert "%t topic, %p BROKER_ID:PARTITION_ID, %o offset" in said
    assert ("TubeMQ keeps no keys" in said) == (template == "%k")


def test_text_and_json_are_decoded(consume, send):
    send("clicks", 0, '{"a": [1, "ü"]}', '"text"')
    first, second = lines(consume("clicks", "--decode", "json", "--json"))
    assert (first["value"], second["value"]) == ({"a": [1, "ü"]}, "text")
    assert (first["offset"], first["messageTime"]) == (0, MADE)
    assert (
        consume("clicks", "--decode", "json")
        .decode()
        .startswith('{\n  "a": [\n    1,\n    "ü"\n  ]\n}\n"text')
    )
    send("shared", 0, b"a\xffb")
    assert consume("shared", "--decode", "text").decode() == "a\ufffdb\n"
    assert lines(consume("shared", "--decode", "text", "--json"))[0]["value"] == "a\ufffdb"


def test_what_does_not_fit_is_reported_and_printed_as_it_is(consume, send):
    send("clicks", 0, "1", "{", "2")
    written = consume("clicks", "--decode", "json", "--format", r"%s;", code=1)
    assert written.out == b"1;{;2;"
    assert b"the message 28 of clicks/1:0 cannot be decoded: it is not JSON (" in written.err
    assert b"it is not a sound InLongMsg: " in consume("clicks", "--decode", "inlong", code=1).err


def test_messages_that_inlong_packed_are_unpacked(consume, send):
    packed = container(1, [("a=1", [(b"one", b""), (b"\xff", b"")])], 1500)
    send("clicks", 0, packed, container(2, [("", [(b"three", b"")])], compress=snappy))
    assert consume("clicks", "--decode", "inlong", "--delimiter", ";") == b"one;\xff;three;"
    first, second, third = lines(consume("clicks", "--decode", "inlong", "--json"))
    assert (first["value"], first["inlongAttributes"], first["inlongTime"], first["inlongIndex"]) == (
        *("one", {"a": "1"}, "1970-01-01T00:00:01.500Z", 0),
    )
    assert (second["valueBase64"], second["inlongIndex"], second["offset"]) == ("/w==", 1, 0)
    assert (third["value"], third["offset"]) == ("three", 28)
    assert consume("clicks", "--decode", "inlong", "--count", "1").splitlines() == [b"one", b"\xff"]


SCHEMA = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "raw", "type": ["null", "bytes"]},
        {"name": "tags", "type": {"type": "array", "items": "int"}},
    ],
}
CLICK = {"user": "anna", "at": 1_500, "raw": b"\xff", "tags": [1, 2]}


def avro(value):
    from fastavro import schemaless_writer

    out = io.BytesIO()
    schemaless_writer(out, SCHEMA, value)
    return out.getvalue()


@pytest.fixture
def schema(tmp_path):
    file = tmp_path / "click.avsc"
    file.write_text(json.dumps(SCHEMA))
    return str(file)


def test_avro_is_decoded_with_and_without_a_registrys_head(consume, send, schema):
    send("clicks", 0, avro(CLICK))
    send("shared", 0, b"\0\0\0\0\7" + avro(CLICK), b"no head", b"\0\0\0\0\7" + avro(CLICK) + b"more", b"\0")
    shown = {"user": "anna", "at": "1970-01-01 00:00:01.500000+00:00", "raw": "/w==", "tags": [1, 2]}
    how = ("--decode", "avro", "--schema", schema, "--json")
    assert lines(consume("clicks", *how))[0]["value"] == shown
    written = consume("shared", *how, "--registry-head", code=1)
    assert lines(written.out)[0]["value"] == shown
    told = written.err.decode()
    assert "it begins with b'n', not with the zero of a registry" in told
    assert "it does not fit the schema (4 bytes are left)" in told
    assert told.count("cannot be decoded") == 3


def test_what_avro_needs_is_said(consume, schema, tmp_path, monkeypatch):
    assert "--schema must be specified, since --decode avro needs it" in consume(
        "clicks", "--decode", "avro", code=2
    )
    assert "--decode must be specified" in consume("clicks", "--schema", schema, code=2)
    assert "--decode must be specified" in consume("clicks", "--registry-head", code=2)
    wrong = tmp_path / "wrong.avsc"
    for text in "{", '{"type": "nothing"}':
        wrong.write_text(text)
        said = consume("clicks", "--decode", "avro", "--schema", str(wrong), code=2)
        assert "must be a file with an Avro schema (" in said
    monkeypatch.setitem(sys.modules, "fastavro", None)
    said = consume("clicks", "--decode", "avro", "--schema", schema, code=2)
    assert "[TUBEMQ_COMMAND_NEEDS] --decode avro needs another package" in said
    assert "pip install 'tubemq_spark[avro]'." in said
