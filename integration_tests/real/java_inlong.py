"""InLong's own encoder and decoder of InLongMsgs, which the distribution has in `inlong-common`."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from .java_gateway import Jvm

_CAPACITY: Final = 4096
"""Where the encoder says that it is full; it takes more all the same."""


class ParsedMsg(NamedTuple):
    """What the Java decoder makes of a body."""

    version: int
    created_ms: int
    """-1 where it does not say."""
    sections: dict[str, list[bytes]]
    """The messages by the text of their attributes."""


class JavaInLongMsgs:
    """`org.apache.inlong.common.msg.InLongMsg`; `JavaClient.inlong_msgs` makes one."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self._class = jvm.view.org.apache.inlong.common.msg.InLongMsg

    def build(
        self, version: int, messages: Iterable[tuple[str, bytes]], created_ms: int, *, compress: bool
    ) -> bytes:
        """Encode messages, each with its attributes; the encoder knows the versions 1 to 3."""
        made = self._class.newInLongMsg(_CAPACITY, compress, version)
        for attributes, body in messages:
            # Py4J gives a bytearray to Java as byte[]; bytes would be a text.
            made.addMsg(attributes, bytearray(body))
        return bytes(made.buildArray(created_ms))

    def build_binary(self, message: bytes, *, compress: bool) -> bytes:
        """Encode a binary message as version 4."""
        made = self._class.newInLongMsg(_CAPACITY, compress, 4)
        assert made.addMsg(bytearray(message))
        return bytes(made.buildArray())

    def parse(self, body: bytes) -> ParsedMsg | None:
        """Decode a body; None where the decoder finds no version."""
        found = self._class.parseFrom(bytearray(body))
        if found is None:
            return None
        sections = {text: self._messages(found, text) for text in list(found.getAttrs())}
        return ParsedMsg(found.getVersion(), found.getCreatetime(), sections)

    def _messages(self, found: Any, attributes: str) -> list[bytes]:
        to_list = self._jvm.view.com.google.common.collect.Lists.newArrayList
        return [base64.b64decode(text) for text in self._jvm.plain(to_list(found.getIterator(attributes)))]
