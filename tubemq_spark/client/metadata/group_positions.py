"""Where a consumer group stands in partitions: reading that, and moving it, without consuming anything.

Registering a partition under the group answers with the group's position, and sets it where an offset is
given; the lease is given up at once, and the position stays. While a consumer of the group holds a
partition, the broker refuses (410): its position is that consumer's business.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from tubemq_spark.client.broker.channels import connect_to_all
from tubemq_spark.client.broker.session import BrokerSession, Claim, Position
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master import identity
from tubemq_spark.client.master.producers import fresh_visit_token, is_token_refused
from tubemq_spark.errors import RemoteProtocolError, TubeMQError
from tubemq_spark.model import TopicPartition, TopicsLayout
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import SLEEP, Wait

Key = TypeVar("Key")
Result = TypeVar("Result")


def group_positions(
    config: ClientConfig, pool: ChannelPool, layout: TopicsLayout, wait: Wait = SLEEP
) -> dict[TopicPartition, int]:
    """Return the group's next offset in each partition, in index bytes; the log's beginning if it has none.

    Raises:
        RpcError: a consumer of the group holds a partition (410), or a broker refuses for another reason.
        TubeMQConnectionError: a broker cannot be reached.
    """
    positions, failures = _register(config, pool, layout, dict.fromkeys(layout.partitions), wait)
    for error in failures.values():
        raise error
    return {partition: position.current for partition, position in positions.items()}


def move_group(
    config: ClientConfig,
    pool: ChannelPool,
    layout: TopicsLayout,
    positions: Mapping[TopicPartition, int],
    wait: Wait = SLEEP,
) -> dict[TopicPartition, TubeMQError]:
    """Move the group to offsets, in index bytes; return why it was not moved in some partitions.

    Partitions that the layout does not list are left out.
    """
    listed = {partition: offset for partition, offset in positions.items() if partition in layout.partitions}
    answers, failures = _register(config, pool, layout, listed, wait)
    for partition, position in answers.items():
        if position.current != listed[partition]:
            failures[partition] = RemoteProtocolError(
                "TUBEMQ_POSITION_MOVED",
                partition=partition,
                actual=position.current,
                expected=listed[partition],
            )
    return failures


def _register(
    config: ClientConfig,
    pool: ChannelPool,
    layout: TopicsLayout,
    offsets: Mapping[TopicPartition, int | None],
    wait: Wait,
) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, TubeMQError]]:
    """Register partitions and give them up again; return the answers and the failures."""
    positions, failures = _register_with(config, pool, layout, offsets, wait)
    refused = {place: offsets[place] for place, error in failures.items() if is_token_refused(error)}
    if refused:
        try:
            token = fresh_visit_token(config, pool)
        except TubeMQError as error:
            return positions, failures | dict.fromkeys(refused, error)
        renewed = dataclasses.replace(layout, visit_token=token)
        found_now, failures_now = _register_with(config, pool, renewed, refused, wait)
        permanent = {partition: error for partition, error in failures.items() if partition not in refused}
        return positions | found_now, permanent | failures_now
    return positions, failures


def _register_with(
    config: ClientConfig,
    pool: ChannelPool,
    layout: TopicsLayout,
    offsets: Mapping[TopicPartition, int | None],
    wait: Wait,
) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, TubeMQError]]:
    """Do so once, all at once, with the visit token of the layout."""
    failures: dict[TopicPartition, TubeMQError] = {}
    client_id = identity.consumer_id(config.group)
    claims = {partition: Claim(partition, config.group, client_id) for partition in offsets}
    sessions = _sessions(config, pool, layout, offsets, failures, wait)
    registers = _collect(
        {
            partition: functools.partial(session.start_register, claims[partition], offsets[partition])
            for partition, session in sessions.items()
        },
        failures,
    )
    unimportant: dict[TopicPartition, TubeMQError] = {}
    try:
        positions = _collect(
            {partition: register.result for partition, register in registers.items()}, failures
        )
    finally:
        # Also after an error: the broker may have carried the request out. A lease that is not given up ends
        # by itself; the position is set all the same.
        releases = _collect(
            {
                place: functools.partial(sessions[place].start_unregister, claims[place])
                for place in registers
            },
            unimportant,
        )
    _collect({partition: release.result for partition, release in releases.items()}, unimportant)
    return positions, failures


def _sessions(
    config: ClientConfig,
    pool: ChannelPool,
    layout: TopicsLayout,
    partitions: Iterable[TopicPartition],
    failures: dict[TopicPartition, TubeMQError],
    wait: Wait,
) -> dict[TopicPartition, BrokerSession]:
    """Connect to each broker once."""
    endpoints = {partition: layout.partitions[partition] for partition in partitions}
    channels, away = connect_to_all(config, pool, set(endpoints.values()))
    failures.update({place: away[endpoint] for place, endpoint in endpoints.items() if endpoint in away})
    return {
        partition: BrokerSession(channels[endpoint], config, layout.visit_token, wait)
        for partition, endpoint in endpoints.items()
        if endpoint in channels
    }


def _collect(
    calls: Mapping[Key, Callable[[], Result]], failures: dict[Key, TubeMQError]
) -> dict[Key, Result]:
    """Make calls one by one and keep what came of each."""
    results = {}
    for key, call in calls.items():
        try:
            results[key] = call()
        except TubeMQError as error:
            failures[key] = error
    return results
