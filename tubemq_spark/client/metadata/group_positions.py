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

Key = TypeVar("Key")
Result = TypeVar("Result")


def group_positions(
    config: ClientConfig, pool: ChannelPool, layout: TopicsLayout
) -> dict[TopicPartition, int]:
    """Return the group's next offset in each partition, in index bytes; the log's beginning if it has none.

    Raises:
        RpcError: a consumer of the group holds a partition (410), or a broker refuses for another reason.
        TubeMQConnectionError: a broker cannot be reached.
    """
    found, failures = _register(config, pool, layout, dict.fromkeys(layout.partitions))
    for error in failures.values():
        raise error
    return {partition: position.current for partition, position in found.items()}


def move_group(
    config: ClientConfig, pool: ChannelPool, layout: TopicsLayout, positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, TubeMQError]:
    """Move the group to offsets, in index bytes; return why it was not moved in some partitions.

    Partitions that the layout does not list are left out.
    """
    listed = {one: offset for one, offset in positions.items() if one in layout.partitions}
    found, failures = _register(config, pool, layout, listed)
    for partition, position in found.items():
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
) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, TubeMQError]]:
    """Register partitions and give them up again; return the answers and the failures."""
    found, failures = _register_with(config, pool, layout, offsets)
    refused = {one: offsets[one] for one, error in failures.items() if is_token_refused(error)}
    if refused:
        try:
            token = fresh_visit_token(config, pool)
        except TubeMQError as error:
            return found, failures | dict.fromkeys(refused, error)
        renewed = dataclasses.replace(layout, visit_token=token)
        found_now, failures_now = _register_with(config, pool, renewed, refused)
        kept = {one: error for one, error in failures.items() if one not in refused}
        return found | found_now, kept | failures_now
    return found, failures


def _register_with(
    config: ClientConfig,
    pool: ChannelPool,
    layout: TopicsLayout,
    offsets: Mapping[TopicPartition, int | None],
) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, TubeMQError]]:
    """Do so once, all at once, with the visit token of the layout."""
    failures: dict[TopicPartition, TubeMQError] = {}
    client_id = identity.consumer_id(config.group)
    claims = {partition: Claim(partition, config.group, client_id) for partition in offsets}
    sessions = _sessions(config, pool, layout, offsets, failures)
    registers = _collect(
        {
            one: functools.partial(session.start_register, claims[one], offsets[one])
            for one, session in sessions.items()
        },
        failures,
    )
    found = _collect({one: register.result for one, register in registers.items()}, failures)
    # Also after an error: the broker may have carried the request out. A lease that is not given up ends by
    # itself; the position is set all the same.
    unimportant: dict[TopicPartition, TubeMQError] = {}
    releases = _collect(
        {one: functools.partial(sessions[one].start_unregister, claims[one]) for one in registers},
        unimportant,
    )
    _collect({one: release.result for one, release in releases.items()}, unimportant)
    return found, failures


def _sessions(
    config: ClientConfig,
    pool: ChannelPool,
    layout: TopicsLayout,
    partitions: Iterable[TopicPartition],
    failures: dict[TopicPartition, TubeMQError],
) -> dict[TopicPartition, BrokerSession]:
    """Connect to each broker once."""
    endpoints = {partition: layout.partitions[partition] for partition in partitions}
    channels, away = connect_to_all(config, pool, set(endpoints.values()))
    failures.update({one: away[endpoint] for one, endpoint in endpoints.items() if endpoint in away})
    return {
        one: BrokerSession(channels[endpoint], config, layout.visit_token)
        for one, endpoint in endpoints.items()
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
