"""How much a store, a broker or a server has taken in and given out."""

import dataclasses


@dataclasses.dataclass(slots=True)
class Traffic:
    """Messages and payload bytes that came in and went out since the start."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    damaged: int = 0
    """Records found damaged and not delivered, each counted once."""

    def add(self, part: "Traffic") -> None:
        """Add the counts of one part."""
        self.messages_in += part.messages_in
        self.bytes_in += part.bytes_in
        self.messages_out += part.messages_out
        self.bytes_out += part.bytes_out
        self.damaged += part.damaged
