"""Fuzz the compiled module under the sanitizers, guided by coverage; ``make fuzz-speedups``.

Its C functions run on changed answers of brokers, without Python. Afterwards both twins must agree on every
input that was found. What makes it die is saved as ``crash`` in the directory that is named.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Final

from testkit.compiler import can_compile
from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.protocol import speedups
from tubemq_spark.protocol.fetch_decoder import decode_fetch
from tubemq_spark.protocol.payload import checksum, encode_payload
from tubemq_spark.protocol.pb import broker_pb2

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


def build(directory: Path) -> Path:
    """Compile the fuzzer and its target.

    Raises:
        CalledProcessError: a compiler is missing what this needs; it says so on the screen.
    """
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
    """Return answers as brokers write them."""
    made = []
    for count in (0, 1, 3, 9):
        answer = broker_pb2.GetMessageResponseB2C(success=True, errCode=200, errMsg="OK!", currOffset=28)
        for _ in range(count):
            attributes = {"k": "v"} if chance.random() < 0.5 else None
            data, flag = encode_payload(chance.randbytes(1 + chance.randrange(40)), attributes)
            answer.messages.add(
                messageId=chance.getrandbits(60), checkSum=checksum(data), payLoadData=data, flag=flag
            )
        made.append(answer.SerializeToString())
    return made


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


def outcome(body: bytes) -> object:
    """Return all that is found in an answer, or what is said to be wrong with it."""
    try:
        header, columns, damaged = decode_fetch(body)
    except RemoteProtocolError as error:
        return str(error)
    messages = [columns.message(row) for row in range(len(columns))]
    return header, columns.ordinals.tolist(), messages, damaged.tolist()


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
