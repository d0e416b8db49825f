"""Fuzz the compiled module under the sanitizers, guided by coverage; ``make fuzz-speedups``.

Its C functions run on changed answers of brokers to fetches and to sends, and on changed columns of messages
to be sent, without Python. Every input is taken as each of these. Afterwards both twins must agree on every
input that was found. What makes it die is saved as ``crash`` in the directory that is named.
"""

import argparse
import itertools
import os
import random
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np

from testkit.compiler import can_compile
from testkit.wire import decode_fetch, encode_response
from tubemq_spark.errors import LocalProtocolError, RemoteProtocolError
from tubemq_spark.protocol import framing, rpc, speedups
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.payload import checksum, encode_payload
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.protocol.send_batch import BytesColumn
from tubemq_spark.protocol.send_connection import SendAnswerReader
from tubemq_spark.protocol.send_frames import Payloads, Places, encode_sends

_HERE: Final = Path(__file__).resolve().parent
_FAILURES: Final = _HERE / "failures" / "speedups"
_SANITIZERS: Final = (
    "-g",
    "-O1",
    "-fno-pie",
    "-no-pie",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)

_SEND_HEAD_BYTES: Final = 9
_SEND_NUMBERS: Final = 16
_LIMITS: Final = {(1 << 15) - 1: (1 << 63) - 1, -(1 << 15): -(1 << 63)}
"""Numbers of two bytes that stand for the limits of those of eight."""

Sends = tuple[Payloads, BytesColumn, int, int, list[int], Places]


def build(directory: Path) -> Path:
    """Compile the fuzzer and its target."""
    include = f"-I{sysconfig.get_paths()['include']}"
    coverage = ("-fsanitize-coverage=trace-pc",)
    objects = []
    for name, flags in (("speedups_target", coverage), ("guided", ())):
        made = directory / f"{name}.o"
        command = ["cc", *_SANITIZERS, *flags, include, "-c", str(_HERE / f"{name}.c"), "-o", str(made)]
        subprocess.run(command, check=True)
        objects.append(str(made))
    program = directory / "guided"
    # What the target does not call needs Python, which is not there.
    link = ["cc", *_SANITIZERS, *objects, "-Wl,--unresolved-symbols=ignore-all", "-o", str(program)]
    subprocess.run(link, check=True)
    return program


def run(program: Path, seconds: int, seed: int, corpus: Path) -> int:
    """Fuzz; return the exit code, which is not 0 when the target died."""
    # Looking for leaks needs rights that containers often lack, and the target frees what it takes.
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}
    command = [str(program), str(seconds), str(seed), str(corpus)]
    return subprocess.run(command, env=environment, check=False).returncode


def seeds(chance: random.Random) -> list[bytes]:
    """Return answers as brokers write them, and messages to be sent."""
    fetched = [fetch_answer(chance, count) for count in (0, 1, 3, 9)]
    framed = framing.encode_frame(1, encode_response(rpc.Response(1, Method.GET_MESSAGE, fetched[-1])))
    answered = [framed, *(send_answers(chance, count) for count in (1, 3, 30))]
    return [*fetched, *answered, *(columns(chance, count) for count in (1, 2, 5))]


def fetch_answer(chance: random.Random, count: int) -> bytes:
    """Return the answer to a fetch."""
    answer = broker_pb2.GetMessageResponseB2C(success=True, errCode=200, errMsg="OK!", currOffset=28)
    for _ in range(count):
        attributes = {"k": "v"} if chance.random() < 0.5 else None
        data, flag = encode_payload(chance.randbytes(1 + chance.randrange(40)), attributes)
        answer.messages.add(
            messageId=chance.getrandbits(60), checkSum=checksum(data), payLoadData=data, flag=flag
        )
    return answer.SerializeToString()


def send_answers(chance: random.Random, count: int) -> bytes:
    """Return answers to sends; the last one is a refusal."""
    frames = []
    for serial_no in range(1, count + 1):
        stored = serial_no < count or count == 1
        answer = broker_pb2.SendMessageResponseB2P(
            success=stored, errCode=200 if stored else 419, errMsg=str(chance.getrandbits(60))
        )
        if stored:
            answer.requireAuth, answer.messageId = False, chance.getrandbits(60)
            answer.appendTime, answer.appendOffset = 1_704_164_645_678, 28 * serial_no
        response = rpc.Response(serial_no, Method.SEND_MESSAGE, answer.SerializeToString())
        frames.append(framing.encode_frame(serial_no, encode_response(response)))
    return b"".join(frames)


def columns(chance: random.Random, count: int) -> bytes:
    """Return messages to be sent, as ``sends_of`` reads them."""
    borders = [*range(0, 8 * count + 1, 8)]
    numbers = [borders, [0, 0, 9], [9, 20, 40], [0, 12, 30]]
    numbers += [[chance.randrange(2) for _ in range(count)], [*reversed(range(count))], [1, count - 1]]
    head = bytes([*map(len, numbers), 100, chance.randrange(256)])
    flat = [number for some in numbers for number in some]
    return head + struct.pack(f"<{len(flat)}h", *flat) + chance.randbytes(64)


def sends_of(data: bytes) -> Sends | None:
    """Take any bytes as arguments of ``encode_sends``, as ``send_anything`` of the target does."""
    if len(data) < _SEND_HEAD_BYTES:
        return None
    at = _SEND_HEAD_BYTES
    found = []
    for count in data[:7]:
        taken = min(count % _SEND_NUMBERS, (len(data) - at) // 2)
        numbers = struct.unpack_from(f"<{taken}h", data, at)
        found.append([_LIMITS.get(number, number) for number in numbers])
        at += 2 * taken
    texts = data[at:]
    values, prefixes, backs = (BytesColumn(texts, np.array(borders, np.int64)) for borders in found[:3])
    places = [texts[max(start, 0) : max(end, 0)] for start, end in itertools.pairwise(found[3])]
    payloads = Payloads(values, prefixes, np.array(found[4], np.int64))
    serial_no = int.from_bytes(data[8:9], signed=True) << 24
    return payloads, backs, data[7], serial_no, found[5], list(zip(places, found[6], strict=False))


def disagreements(inputs: list[Path]) -> list[Path]:
    """Return the inputs of which the twins say different things."""
    compiled = speedups.compiled
    if compiled is None:
        raise SystemExit("the compiled module was not built; nothing to compare")
    found = []
    for path in inputs:
        said = []
        for speedups.compiled in (compiled, None):
            said.append(outcome(path.read_bytes()))
        if said[0] != said[1]:
            found.append(path)
    speedups.compiled = compiled
    return found


def outcome(data: bytes) -> object:
    """Return all that is found in an input, or what is said to be wrong with it."""
    return fetched(data), unwrapped(data), answered(data), sent(data)


def fetched(data: bytes) -> object:
    """Take an input as the answer to a fetch."""
    try:
        header, columns, damaged = decode_fetch(data)
    except RemoteProtocolError as error:
        return str(error)
    messages = [columns.message(row) for row in range(len(columns))]
    return header, columns.ordinals.tolist(), messages, damaged.tolist()


def unwrapped(data: bytes) -> object:
    """Take an input as what a client receives that has asked something."""
    connection = RpcConnection(Role.CLIENT)
    connection.send_request(ServiceType.BROKER_READ, Method.GET_MESSAGE, b"", 1)
    try:
        return connection.receive_data(data), connection.frame_count, connection.mid_frame
    except RemoteProtocolError as error:
        return str(error)


def answered(data: bytes) -> object:
    """Take an input as answers to sends, in two pieces."""
    reader = SendAnswerReader(detailed=True)
    found: list[object] = []
    try:
        for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
            serial_nos, offsets, failures, details = reader.receive_data(piece)
            found += [serial_nos.tolist(), offsets.tolist(), failures]
            found += [column.tolist() for column in details or ()]
    except RemoteProtocolError as error:
        found.append(str(error))
    return found


def sent(data: bytes) -> object:
    """Take an input as messages to be sent."""
    sends = sends_of(data)
    try:
        return sends and encode_sends(*sends)
    except (LocalProtocolError, IndexError, ValueError) as error:
        return type(error)


def main() -> int:
    """Build, fuzz, compare; return 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    if not can_compile():
        sys.stdout.write("no C compiler, or no headers of Python: nothing to fuzz\n")
        return 0
    with tempfile.TemporaryDirectory() as name:
        program, corpus = build(Path(name)), Path(name) / "corpus"
        corpus.mkdir()
        for number, seed in enumerate(seeds(random.Random(arguments.seed))):
            (corpus / f"seed-{number}").write_bytes(seed)
        died = run(program, arguments.seconds, arguments.seed, corpus)
        inputs = sorted(corpus.iterdir())
        wrong = disagreements(inputs)
        sys.stdout.write(
            f"seed {arguments.seed}: the twins disagree on {len(wrong)} of {len(inputs)} inputs\n"
        )
        if died or wrong:
            shutil.copytree(corpus, _FAILURES, dirs_exist_ok=True)
            sys.stdout.write(f"exit code {died}; see {_FAILURES}: {[path.name for path in wrong]}\n")
        return int(bool(died or wrong))


if __name__ == "__main__":
    sys.exit(main())
