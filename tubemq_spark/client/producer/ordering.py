"""Messages of one partition, one after the other: with ``keep_order`` the next leaves when one has ended.

An answer may refuse any request, and a connection may be lost at any of them. So what is sent behind a
message that has no outcome may be stored before it, and only a partition with a single message under way
keeps the order. Which message that is depends on nothing that happens to it: it stays the first of its line
while it is queued, in flight, or waits for another attempt.
"""

import collections

from tubemq_spark.client.producer.runs import Destination, Run


class PartitionLines:
    """A line for each partition, whose first message is under way; the others wait here.

    Every message here is a run of one, and keeps its partition until it has ended.
    """

    def __init__(self) -> None:
        self._lines: dict[Destination, collections.deque[Run]] = {}

    def begin(self, message: Run) -> bool:
        """Return whether a message may leave now; if not, it waits in its line."""
        line = self._lines.get(message.destination)
        if line is None:
            self._lines[message.destination] = collections.deque((message,))
            return True
        line.append(message)
        return False

    def end(self, message: Run) -> Run | None:
        """Take a message that has ended out of its line, if it has one; return the next that may leave."""
        line = self._lines.get(message.destination)
        if line is None or message not in line:
            return None
        was_first = line[0] is message
        line.remove(message)
        if not line:
            del self._lines[message.destination]
            return None
        return line[0] if was_first else None

    def waiting(self, now: float) -> list[Run]:
        """Return the messages that wait here and whose time is over."""
        lines = [line for line in self._lines.values() if len(line) > 1 and line[1].give_up_at <= now]
        return [message for line in lines for message in list(line)[1:] if message.give_up_at <= now]
