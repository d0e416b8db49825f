"""Questions to the administration API: of whichever master answers, and of all brokers.

- The offsets of consumer groups as brokers keep them. The protocol of the clients tells a group's offset only
  to one who takes its partition. The API disturbs no consumer, and knows all groups. Offsets get there with a
  delay of some seconds (``offsetStgCacheFlushMs``).
- Logs from which retention took no data: where their index begins, they can be read. To read the first
  records of a log brings some 300 KB, and no setting of a fetch makes that less. So of many logs the API is
  asked first, which tells where the data of each begins: at 0 until the first of its files is removed.
  Nothing depends on an answer, so nothing waits long for one.
"""

import itertools
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from tubemq_spark.client.metadata.admin import BrokerAdmin, MasterAdmin, Parameter, page_of
from tubemq_spark.errors import AdminError, TubeMQConnectionError, TubeMQError
from tubemq_spark.model import Endpoint, OffsetBounds, StoredOffset, StoredOffsets, TopicPartition
from tubemq_spark.net.side_by_side import all_of, answers_and_errors
from tubemq_spark.offsets.notation import listed

Answer = TypeVar("Answer")


def ask_a_master(
    web_servers: Sequence[Endpoint],
    timeout_s: float,
    ask: Callable[[MasterAdmin], Answer],
    condition: str,
    token: str | None = None,
) -> Answer:
    """Ask one master after the other until one answers.

    A master that does not lead sends the caller elsewhere in a way that loses the question
    (``MasterStatusCheckFilter``), which looks like a refusal. So a refusal only counts when no other master
    answers.
    """
    causes, refusals = [], []
    for server in web_servers:
        try:
            return ask(MasterAdmin(str(server), token=token, timeout_s=timeout_s))
        except TubeMQConnectionError as error:
            causes.append(str(error.parameters["cause"]))
        except AdminError as error:
            refusals.append(error)
    for refusal in refusals:
        raise refusal
    raise TubeMQConnectionError(
        condition, servers=", ".join(map(str, web_servers)), cause="; ".join(dict.fromkeys(causes))
    )


class ActiveMasterAdmin(MasterAdmin):
    """Administers a cluster through whichever of some servers is its active master.

    It is looked for with the first call, and again with the next call after one that failed.
    """

    def __init__(self, web_servers: Sequence[Endpoint], *, token: str | None = None) -> None:
        """Ask no server."""
        super().__init__(str(web_servers[0]), token=token)
        self._web_servers = tuple(web_servers)
        self._is_known = False

    def call(self, /, method: str, **parameters: Parameter) -> dict[str, Any]:
        """Make a call as ``MasterAdmin.call``."""
        try:
            return super().call(method, **parameters)
        except AdminError:
            self._is_known = False  # one that does not lead any more refuses everything
            raise

    def ask(self, /, **parameters: Parameter) -> dict[str, Any]:
        """Send parameters as ``MasterAdmin.ask``."""
        if not self._is_known:
            self._server = self._active()
            self.url, self._is_known = page_of(self._server), True
        try:
            return super().ask(**parameters)
        except TubeMQConnectionError:
            self._is_known = False
            raise

    def _active(self) -> Endpoint:
        causes = []
        for server in self._web_servers:
            try:
                roles = MasterAdmin(str(server), timeout_s=self._timeout_s).group_nodes().values()
            except TubeMQConnectionError as error:
                causes.append(f"{server}: {error.parameters['cause']}")
            except AdminError as error:
                causes.append(f"{server}: {error.reason}")
            else:
                if any(role.upper() == "MASTER" for role in roles):
                    return server
                causes.append(f"{server}: no master is active")
        raise TubeMQConnectionError("TUBEMQ_NO_ACTIVE_MASTER", causes="; ".join(causes))


Place: TypeAlias = tuple[str, str, dict[str, int]]
"""A group, a topic and an item of the API about a partition; see ``BrokerAdmin.group_places``."""
_MOST_REFUSALS: Final = 100
"""After so many groups a broker refuses for another reason, and is asked no more."""


def stored_offsets(
    web_servers: Sequence[Endpoint], timeout_s: float, group: str | None, topics: Collection[str]
) -> StoredOffsets:
    """Ask all brokers that a master has in its configuration, at once."""
    ask_for_brokers = MasterAdmin.broker_web_servers
    brokers = ask_a_master(web_servers, timeout_s, ask_for_brokers, "TUBEMQ_BROKERS_NOT_LISTED")

    def ask(broker_id: int) -> tuple[list[StoredOffset], dict[str, AdminError]]:
        admin = BrokerAdmin(str(brokers[broker_id]), timeout_s=timeout_s)
        refusals: dict[str, AdminError] = {}
        holders = admin.holders()
        places = _places(admin, [] if group is None else [group], topics, refusals)
        return [_offset(broker_id, place, holders) for place in places], refusals

    answers, errors = answers_and_errors(ask, sorted(brokers))
    offsets = itertools.chain.from_iterable(offsets for offsets, _ in answers.values())
    not_told = {
        broker_id: _not_told(broker_id, refusals) for broker_id, (_, refusals) in answers.items() if refusals
    }
    return StoredOffsets(tuple(offsets), errors | not_told)


def _not_told(broker_id: int, refusals: Mapping[str, AdminError]) -> AdminError:
    error = next(iter(refusals.values()))
    return AdminError(
        "TUBEMQ_GROUPS_NOT_TOLD",
        broker=broker_id,
        groups=listed(sorted(refusals)),
        code=error.code,
        reason=error.reason,
    )


def _places(
    admin: BrokerAdmin, groups: Sequence[str], topics: Collection[str], refusals: dict[str, AdminError]
) -> list[Place]:
    """Return where groups stand, or all groups, but for those that the broker refuses to tell of.

    A Java broker refuses the whole question for one group that it cannot tell of. So a question that is
    refused is asked again in halves.
    """
    try:
        return list(admin.group_places(groups, topics))
    except AdminError as error:
        if len(groups) == 1:
            refusals[groups[0]] = error
            return []
        names = groups or admin.booked_groups()
        if not names or len(refusals) >= _MOST_REFUSALS:
            raise
    middle = (len(names) + 1) // 2
    halves = [half for half in (names[:middle], names[middle:]) if half]
    return [place for half in halves for place in _places(admin, half, topics, refusals)]


def _offset(broker_id: int, place: Place, holders: Mapping[tuple[str, str, int], str]) -> StoredOffset:
    group, topic, item = place
    return StoredOffset(
        group,
        TopicPartition(topic, broker_id, item["partitionId"]),
        committed=item["curOffset"],
        in_flight=max(0, item["flightOffset"]),
        latest=item["offsetMax"] if item["offsetMax"] >= 0 else None,
        consumer=holders.get((group, topic, item["partitionId"])),
    )


logger = logging.getLogger(__name__)


_TIMEOUT_S: Final = 1.0
_REST_S: Final = 600.0

_resting: Final[dict[Endpoint, float]] = {}
"""Until when servers are not asked, because they did not answer: a firewall would hold up every plan."""


def whole_logs(
    web_servers: Sequence[Endpoint], begins: Mapping[TopicPartition, OffsetBounds]
) -> set[TopicPartition]:
    """Return the partitions whose logs are known to be whole.

    ``begins`` are partitions that share their store with no other, with what its index holds.
    """
    addresses = _addresses(web_servers)
    topics: dict[int, set[str]] = {}
    for partition in begins:
        if partition.broker_id in addresses:
            topics.setdefault(partition.broker_id, set()).add(partition.topic)

    def ask(broker_id: int) -> Mapping[tuple[str, int], OffsetBounds]:
        server, names = addresses[broker_id], sorted(topics[broker_id])
        return (
            _answer(server, lambda: BrokerAdmin(str(server), timeout_s=_TIMEOUT_S).whole_stores(names)) or {}
        )

    whole = all_of(ask, topics)

    def is_whole(partition: TopicPartition, span: OffsetBounds) -> bool:
        bounds = whole.get(partition.broker_id, {}).get((partition.topic, partition.partition_id))
        # Of the same log, and not of another one that goes by its name.
        return bounds is not None and bounds.earliest == span.earliest and bounds.latest >= span.latest

    return {partition for partition, span in begins.items() if is_whole(partition, span)}


def _addresses(web_servers: Sequence[Endpoint]) -> Mapping[int, Endpoint]:
    """Return where brokers serve their administration API, by broker id; nothing if no master answers."""
    for server in web_servers:
        admin = MasterAdmin(str(server), timeout_s=_TIMEOUT_S)
        if (brokers := _answer(server, admin.broker_web_servers)) is not None:
            return brokers
    return {}


def _answer(server: Endpoint, ask: Callable[[], Answer]) -> Answer | None:
    """Return what a server answers; None if it does not, or did not a while ago."""
    now = time.monotonic()
    if now < _resting.get(server, now):
        return None
    try:
        return ask()
    except (TubeMQError, LookupError, TypeError) as error:
        # Anything may listen at the usual ports, and answer what it likes.
        logger.info("%s does not tell which logs are whole; their first records are read: %r", server, error)
        _resting[server] = now + _REST_S
        return None
