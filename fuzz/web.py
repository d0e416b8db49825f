"""Requests to the web ports: valid calls with odd parameters, and damaged ones."""

import random
import re
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from fuzz import mutations
from fuzz.corpus import ODD_NUMBERS, ODD_TEXTS

_PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "testing" / "admin-api.md"
_CALLS: Final = tuple(
    sorted(set(re.findall(r"^\| `(\w+)` \|", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)))
)
"""All calls of both ports."""
_MAY_CHANGE: Final = re.compile(r"group|offset")
"""Calls that get the right token: those that cannot remove topics or brokers from valid requests."""
_NAMES: Final = (
    "topicName", "groupName", "consumeGroup", "brokerId", "brokerIp", "brokerPort", "partitionId",
    "numPartitions", "numTopicStores", "modifyUser", "createUser", "createDate", "flowCtrlInfo",
    "flowCtrlEnable", "filterConds", "requireRealOffset", "deletePolicy", "callback", "qryPriorityId",
    "maxMsgSizeInMB", "withDetail",
)  # fmt: skip
_JSON: Final = (
    '{"1:fuzz_one:0": 28}', '{"1:fuzz_one:0": null}', '{"a": ' * 500, "[]", "{}", "[" * 3_000,
    '[{"type":0,"rule":[{"start":"08:00","end":"17:59","dltInM":1,"limitInM":1,"freqInMs":500}]}]',
)  # fmt: skip
_WORDS: Final = (
    "fuzz_one",
    "fuzz_many,fuzz_one",
    "fuzz_group",
    "true",
    "1",
    "20300103_0000",
    "delete,1h",
    "..",
    "/",
)
_FOREIGN: Final = ("Host: evil.example", "Origin: null", "Referer: http://[", "Sec-Fetch-Site: cross-site")


def request(chance: random.Random) -> bytes:
    """Return a request; most are not damaged."""
    sound = _sound(chance)
    if chance.random() < 0.7:
        return sound
    return mutations.damaged(sound, chance)


def _sound(chance: random.Random) -> bytes:
    method = chance.choice(_CALLS)
    values = {name: _value(chance) for name in chance.sample(_NAMES, chance.randint(0, 12))}
    right = _MAY_CHANGE.search(method) is not None and chance.random() < 0.7
    query = urlencode({"method": method, **values, "confModAuthToken": "abc" if right else "x"})
    header = f"\r\n{chance.choice(_FOREIGN)}" if chance.random() < 0.05 else ""
    if chance.random() < 0.5:
        return f"GET /webapi.htm?{query} HTTP/1.1{header}\r\n\r\n".encode()
    length = chance.choice(
        (len(query), len(query), len(query), len(query) + 9, 3, -1, 1 << 20, (1 << 20) + 1)
    )
    return f"POST /webapi.htm HTTP/1.1{header}\r\nContent-Length: {length}\r\n\r\n{query}".encode()


def _value(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.5:
        return chance.choice(_WORDS)
    if kind < 0.7:
        return str(chance.choice(ODD_NUMBERS))
    return chance.choice(ODD_TEXTS) if kind < 0.9 else chance.choice(_JSON)
