"""Send damaged requests to an embedded server and check that it survives; ``make fuzz``.

They are sent to all four ports, on several connections at once. From time to time the server is killed and
restarted on its directory, which must still have what was acknowledged. The same ``--seed`` sends the same
requests. What breaks the server is saved to a file; ``--replay FILE`` sends it again, and in
``tests/fuzz/cases`` it becomes a regression test.
"""

import argparse
import dataclasses
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from fuzz import corpus, credentials, mutations, web
from fuzz.target import BrokenError, Limits, Target, running

_BATCH: Final = 300
"""Frames between two checks of the server."""
_MOST_PER_CONNECTION: Final = 12
_AT_ONCE: Final = 4
"""Connections that are open at the same time."""
_REOPENED_EVERY: Final = 15
"""Batches between two kills."""
_SECURED_EVERY: Final = 3
"""One of this many batches is sent to a server that demands logins."""
_PATIENCE: Final = 20
"""Times the wanted time: how long a machine that is busy with other things may take for the wanted frames."""
_WARM_UP: Final = 10
"""Batches after which the server has the memory that it needs for its work."""


@dataclasses.dataclass(frozen=True, slots=True)
class Conversation:
    """What is sent on one connection."""

    port: str
    data: bytes
    frames: int
    secured: bool = False
    """Whether it is sent to a server that demands logins."""

    def to_json(self) -> dict[str, object]:
        """Return the conversation as it is saved."""
        return {
            "port": self.port,
            "frames": self.frames,
            "secured": self.secured,
            "hex": self.data.hex(),
        }

    @classmethod
    def from_json(cls, saved: dict[str, str]) -> Self:
        """Return the conversation that was saved."""
        secured = bool(saved.get("secured", False))
        return cls(saved["port"], bytes.fromhex(saved["hex"]), int(saved["frames"]), secured)


def batch(seed: int, number: int, frames: int = _BATCH) -> Iterator[Conversation]:
    """Yield conversations with a total number of frames with one server, determined by seed and number."""
    chance = random.Random(f"{seed}/{number}")
    seeds = corpus.recorded() + corpus.made(chance) + corpus.made(chance)
    secured = number % _SECURED_EVERY == _SECURED_EVERY - 1
    if secured:
        seeds = list(credentials.shown(seeds, chance))
    left = frames
    while left > 0:
        talk = _conversation(seeds, chance, min(left, chance.randint(1, _MOST_PER_CONNECTION)))
        left -= talk.frames
        yield dataclasses.replace(talk, secured=secured)


def _conversation(seeds: list[corpus.Seed], chance: random.Random, most: int) -> Conversation:
    """Concatenate requests for one port, up to one after which nothing can follow."""
    port = chance.choice(("master", "broker", "master", "broker", "master_web", "broker_web"))
    if port.endswith("_web"):  # One request per connection.
        return Conversation(port, web.request(chance), 1)
    # Sometimes requests for the other port.
    fitting = seeds if chance.random() < 0.1 else [seed for seed in seeds if seed.port == port]
    pieces: list[bytes] = []
    for serial_no in range(1, most + 1):
        piece, whole = mutations.mutated(chance.choice(fitting), serial_no, chance)
        pieces.append(piece)
        if not whole:
            break
    return Conversation(port, b"".join(pieces), len(pieces))


def hold(target: Target, talks: Sequence[Conversation]) -> None:
    """Hold some conversations, several at once, and check the server."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(lambda talk: target.exchange(talk.port, talk.data), talks):
            pass  # An exception in a conversation is raised here.
    target.check()


def guilty(talks: Sequence[Conversation]) -> Sequence[Conversation]:
    """Return the conversations that break a new server, halved as often as one half breaks it alone.

    None are returned if not even all of them together break it.
    """
    if not _breaks(talks):
        return ()
    while len(talks) > 1:
        middle = len(talks) // 2
        half = next((half for half in (talks[:middle], talks[middle:]) if _breaks(half)), None)
        if half is None:
            break
        talks = half
    return talks


def _breaks(talks: Sequence[Conversation]) -> bool:
    try:
        with running(secured=talks[0].secured) as target:
            hold(target, talks)
    except BrokenError:
        return True
    return False


def save(folder: Path, name: str, reason: str, talks: Sequence[Conversation]) -> Path:
    """Save what broke the server."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    content = {"reason": reason, "conversations": [talk.to_json() for talk in talks]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def load(path: Path) -> list[Conversation]:
    """Read what ``save`` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return [Conversation.from_json(talk) for talk in content["conversations"]]


def fuzz(seed: int, seconds: float, folder: Path, limits: Limits, frames: int = 0) -> int:
    """Send frames for some time, and longer where a busy machine takes it for ``frames``; return how many."""
    sent = number = 0
    with running(limits) as usual, running(limits, secured=True) as secured:
        begin = time.monotonic()
        while (elapsed := time.monotonic() - begin) < seconds or (
            sent < frames and elapsed < _PATIENCE * seconds
        ):
            talks = list(batch(seed, number))
            target = secured if talks[0].secured else usual
            try:
                hold(target, talks)
            except BrokenError as error:
                print(
                    f"broken in batch {number}: {error}\nsearching for the conversation that breaks it ...",
                    flush=True,
                )
                raise BrokenError(_written_down(seed, number, str(error), talks, folder)) from error
            sent += sum(talk.frames for talk in talks)
            number += 1
            if number % _REOPENED_EVERY == 0:
                usual.reopen()
                secured.reopen()
            if number == _WARM_UP:
                usual.measure_growth_from_now()
                secured.measure_growth_from_now()
        grown = f"{usual.growth_mb:.0f} MB, with logins {secured.growth_mb:.0f} MB"
        print(f"resident memory grew by {grown}", flush=True)
    return sent


def _written_down(seed: int, number: int, reason: str, talks: Sequence[Conversation], folder: Path) -> str:
    """Save what broke the server, as little of it as possible; return the reason and the file."""
    few = guilty(talks)
    if not few:
        reason += (
            f"\na new server survives batch {number} of seed {seed} alone: it takes earlier batches too; "
            f"--seed {seed} sends all of them again"
        )
    path = save(folder, f"seed{seed}_batch{number}", reason, few or talks)
    return f"{reason}\nsaved as {path}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; 0: the server survived."""
    parser = argparse.ArgumentParser(prog="fuzz.embedded_frames", description=__doc__)
    parser.add_argument("--seed", type=int, help="default: a different one each time")
    parser.add_argument("--seconds", type=float, default=60.0, help="default: %(default)s")
    parser.add_argument(
        "--frames",
        type=int,
        default=10_000,
        help=f"go on until so many were sent, up to {_PATIENCE} times as long (default: %(default)s)",
    )
    parser.add_argument(
        "--save", type=Path, default=Path("fuzz/failures"), metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="send what was saved, and nothing else")
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 32)
    try:
        if given.replay is not None:
            talks = load(given.replay)
            with running(secured=talks[0].secured) as target:
                hold(target, talks)
            print("the server survived")
            return 0
        print(f"seed {seed}, {given.seconds:g} s", flush=True)
        sent = fuzz(seed, given.seconds, given.save, Limits(), given.frames)
    except BrokenError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{sent} frames sent; the server survived")
    if sent < given.frames:
        print(f"that is fewer than {given.frames}: not enough was tested", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
