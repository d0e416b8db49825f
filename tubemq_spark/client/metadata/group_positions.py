"""Where a consumer group stands in partitions: reading that, and moving it, without consuming anything.

Registering a partition under the group answers with the group's position, and sets it where an offset is
given; the lease is given up at once, and the position stays. While a consumer of the group holds a
partition, the broker refuses (410): its position is that consumer's business.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping

from tubemq_spark.client.broker.session import BrokerSession, Claim, Position, Started
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master import identity
from tubemq_spark.client.master.producers import fresh_visit_token, is_token_refused
from tubemq_spark.errors import RemoteProtocolError, TubeMQError
from tubemq_spark.model import TopicPartition, TopicsLayout
from tubemq_spark.net.connections import Connections


async def group_positions(
    config: ClientConfig, connections: Connections, layout: TopicsLayout
) -> dict[TopicPartition, int]:
    """Return the group's next offset in each partition, in index bytes; the log's beginning if it has none.

    Raises:
        RpcError: a consumer of the group holds a partition (410), or a broker refuses for another reason.
        TubeMQConnectionError: a broker cannot be reached.
    """
    positions, failures = await _register(config, connections, layout, dict.fromkeys(layout.partitions))
    for error in failures.values():
        raise error
    return {partition: position.current for partition, position in positions.items()}


async def move_group(
    config: ClientConfig,
    connections: Connections,
    layout: TopicsLayout,
    positions: Mapping[TopicPartition, int],
) -> dict[TopicPartition, TubeMQError]:
    """Move the group to offsets, in index bytes; return why it was not moved in some partitions.

    Partitions that the layout does not list are left out.
    """
    listed = {partition: offset for partition, offset in positions.items() if partition in layout.partitions}
    answers, failures = await _register(config, connections, layout, listed)
    for partition, position in answers.items():
        if position.current != listed[partition]:
            failures[partition] = RemoteProtocolError(
                "TUBEMQ_POSITION_MOVED",
                partition=partition,
                actual=position.current,
                expected=listed[partition],
            )
    return failures


async def _register(
    config: ClientConfig,
    connections: Connections,
    layout: TopicsLayout,
    offsets: Mapping[TopicPartition, int | None],
) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, TubeMQError]]:
    """Register partitions and give them up again; return the answers and the failures."""
    positions, failures = await _register_with(config, connections, layout, offsets)
    refused = {place: offsets[place] for place, error in failures.items() if is_token_refused(error)}
    if refused:
        try:
            token = await fresh_visit_token(config, connections)
        except TubeMQError as error:
            return positions, failures | dict.fromkeys(refused, error)
        renewed = dataclasses.replace(layout, visit_token=token)
        found_now, failures_now = await _register_with(config, connections, renewed, refused)
        permanent = {partition: error for partition, error in failures.items() if partition not in refused}
        return positions | found_now, permanent | failures_now
    return positions, failures


async def _register_with(
    config: ClientConfig,
    connections: Connections,
    layout: TopicsLayout,
    offsets: Mapping[TopicPartition, int | None],
) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, TubeMQError]]:
    """Do so once, all at once, with the visit token of the layout."""
    failures: dict[TopicPartition, TubeMQError] = {}
    client_id = identity.consumer_id(config.group)
    claims = {partition: Claim(partition, config.group, client_id) for partition in offsets}
    sessions = await _sessions(config, connections, layout, offsets, failures)
    registers: dict[TopicPartition, Started[Position]] = {}
    for partition, session in sessions.items():
        try:
            registers[partition] = session.start_register(claims[partition], offsets[partition])
        except TubeMQError as error:
            failures[partition] = error
    with contextlib.ExitStack() as stack:
        for register in registers.values():
            stack.callback(register.forget)
        releases: list[Started[None]] = []
        try:
            positions = await _answers(registers, failures)
        finally:
            # Also after an error: the broker may have carried the request out. A lease that is not given up
            # ends by itself; the position is set all the same.
            for partition in registers:
                with contextlib.suppress(TubeMQError):
                    releases.append(sessions[partition].start_unregister(claims[partition]))
                    stack.callback(releases[-1].forget)
        for release in releases:
            with contextlib.suppress(TubeMQError):
                await release
    return positions, failures


async def _sessions(
    config: ClientConfig,
    connections: Connections,
    layout: TopicsLayout,
    partitions: Iterable[TopicPartition],
    failures: dict[TopicPartition, TubeMQError],
) -> dict[TopicPartition, BrokerSession]:
    """Connect to each broker once."""
    endpoints = {partition: layout.partitions[partition] for partition in partitions}
    timeout_ms = min(config.connect_timeout_ms, config.rpc_timeout_ms)
    to_broker, away = await connections.to_all(endpoints.values(), timeout_ms, config.tls)
    failures.update({place: away[endpoint] for place, endpoint in endpoints.items() if endpoint in away})
    return {
        partition: BrokerSession(to_broker[endpoint], config, layout.visit_token)
        for partition, endpoint in endpoints.items()
        if endpoint in to_broker
    }


async def _answers(
    registers: Mapping[TopicPartition, Started[Position]], failures: dict[TopicPartition, TubeMQError]
) -> dict[TopicPartition, Position]:
    """Return the answers to requests under way, and note the errors of the others."""
    positions = {}
    for partition, register in registers.items():
        try:
            positions[partition] = await register
        except TubeMQError as error:
            failures[partition] = error
    return positions
