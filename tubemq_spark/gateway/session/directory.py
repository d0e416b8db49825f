"""Which gateways there are, from a directory that they share; TubeMQ's masters know nothing of gateways.

Each gateway has a file there, named after itself and its start, and rewrites it in each period with the
next number. A gateway is there as long as its number grows: each reader notices that on its own
clock, so clocks of hosts are not compared. Of one whose number stands still for ``lease_s`` nothing is told
any more, and its file is removed. A gateway that stops removes its own.

A file is written whole and renamed, so none is read in half. What goes wrong is an error of that period
only.
"""

import contextlib
import dataclasses
import json
import os
import secrets
import time
from pathlib import Path
from typing import Final

from tubemq_spark.net.deadline import Clock

_ENDING: Final = ".gateway.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """A gateway, as it describes itself."""

    id: str
    """Of one start of a gateway; unique."""
    name: str
    address: str
    cluster: str


@dataclasses.dataclass(slots=True)
class _Seen:
    """What was read of a gateway last."""

    peer: Peer
    number: int
    at: float
    """When its number was new, in seconds of our clock."""


class Directory:
    """The shared directory, as one gateway sees it; one thread at a time may renew, any may ask for peers."""

    def __init__(self, folder: Path, lease_s: float, clock: Clock = time.monotonic) -> None:
        self._folder = folder
        self._lease_s = lease_s
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        self._own: Peer | None = None
        self._number = 0

    def join(self, name: str, address: str, cluster: str) -> None:
        """Join; the next ``renew`` writes the file."""
        self._own = Peer(f"{name}-{secrets.token_hex(8)}", name, address, cluster)

    def renew(self) -> None:
        """Say that this gateway is there, and read who else is.

        Raises:
            OSError: the directory cannot be read or written.
        """
        if self._own is not None:
            self._number += 1
            self._write(self._own)
        self._read()

    def peers(self, cluster: str) -> list[Peer]:
        """Return the gateways of a cluster that are there, by name; this one among them."""
        since = self._clock() - self._lease_s
        peers = [
            entry.peer
            for entry in list(self._seen.values())
            if entry.at >= since and entry.peer.cluster == cluster
        ]
        return sorted(peers, key=lambda peer: (peer.name, peer.id))

    def leave(self) -> None:
        """Remove this gateway's file.

        Raises:
            OSError: the file cannot be removed.
        """
        if self._own is not None:
            self._path(self._own.id).unlink(missing_ok=True)
            self._own = None

    def _write(self, own: Peer) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(own.id)
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps({**dataclasses.asdict(own), "number": self._number}), encoding="utf-8")
        os.replace(beside, path)  # noqa: PTH105 (over what is there)

    def _read(self) -> None:
        now = self._clock()
        paths = {path.name.removesuffix(_ENDING): path for path in self._folder.glob(f"*{_ENDING}")}
        for gone in self._seen.keys() - paths.keys():
            del self._seen[gone]
        for name, path in paths.items():
            # Another gateway may write or remove it at this moment, or it is another kind of file.
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
                self._note(name, json.loads(path.read_text(encoding="utf-8")), now)
            entry = self._seen.setdefault(name, _Seen(Peer(name, "", "", ""), 0, now))
            if now - entry.at > 2 * self._lease_s:
                path.unlink(missing_ok=True)

    def _note(self, name: str, content: dict[str, object], now: float) -> None:
        number = int(str(content["number"]))
        entry = self._seen.get(name)
        if entry is None or entry.number != number:
            peer = Peer(name, str(content["name"]), str(content["address"]), str(content["cluster"]))
            self._seen[name] = _Seen(peer, number, now)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{_ENDING}"
