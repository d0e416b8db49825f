"""What confluent-kafka, kafka-python, aiokafka and Spark call something, and what is there for it here.

One table for those who guess, in two parts: attributes and arguments. ``guesses`` answers with it, and ``make
docs`` writes it as a page. A row of the text has the places and the names that others have there, then the
answer: one sentence in Markdown that says what to use, or why there is nothing; and behind = what of ours it
is about.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple


class OtherName(NamedTuple):
    """Names elsewhere of one thing."""

    names: tuple[str, ...]
    places: tuple[str, ...]
    """Classes of ours where they are attributes, or methods where they are arguments; a class as a method is
    its constructor. What is said of a class is true of its form for asyncio."""
    answer: str
    ours: tuple[str, ...] = ()
    """Attributes, arguments and settings of ours that the answer is about; none if there is no such thing."""


SETTINGS: Final = (
    "TubeMQClient",
    "TubeMQClient.connect",
    "TubeMQClient.producer",
    "TubeMQClient.group_consumer",
    "TubeMQClient.assigned_consumer",
    "ClientConfig",
    "ConsumerConfig",
)
"""Where settings are given, ``settings`` in the table; users of other clients give all in one place."""


def _rows(table: str) -> Iterator[OtherName]:
    """Yield the rows of a text; lines that go on are indented."""
    for row in table.replace("\n  ", " ").strip().splitlines():
        head, _, ours = row.partition(" = ")
        places, _, rest = head.partition(": ")
        names, _, answer = rest.partition("   ")
        yield OtherName(
            tuple(names.split()),
            SETTINGS if places == "settings" else tuple(places.split()),
            " ".join(answer.split()),
            tuple(ours.split()),
        )


ATTRIBUTES: Final = tuple(
    _rows("""
TubeMQClient: subscribe consumer create_consumer
    Use `group_consumer(topics)`, whose consumer opens in a `with` block.
    = TubeMQClient.group_consumer
TubeMQClient: assign
    Use `assigned_consumer(topics)`, and `connect` of that.
    = TubeMQClient.assigned_consumer AssignedConsumer.connect
TubeMQClient: send produce send_and_wait create_producer
    Use `producer()`, and `send` of that.
    = TubeMQClient.producer Producer.send
TubeMQClient: poll consume getone getmany fetch commit
    Use `group_consumer(topics)`, and `fetch` and `confirm` of that.
    = TubeMQClient.group_consumer GroupConsumer.fetch GroupConsumer.confirm
TubeMQClient: list_topics describe_topics
    Use `topics()`.
    = TubeMQClient.topics
TubeMQClient: partitions_for partitions_for_topic available_partitions_for_topic
    Use `partitions(topic)`.
    = TubeMQClient.partitions
TubeMQClient: beginning_offsets end_offsets get_watermark_offsets highwater list_offsets
    Use `offsets(topic)`, which says where each partition begins and ends.
    = TubeMQClient.offsets
TubeMQClient: offsets_for_times
    Use `offsets_at(topic, time)`.
    = TubeMQClient.offsets_at
TubeMQClient: list_consumer_group_offsets
    Use `lag(group, topics)`.
    = TubeMQClient.lag
TubeMQClient: create_topic create_topics
    Use `add_topic` of what `admin` returns.
    = TubeMQClient.admin MasterAdmin.add_topic
TubeMQClient: delete_topic delete_topics
    Use `delete_topic` of what `admin` returns, and then `remove_topic`.
    = TubeMQClient.admin MasterAdmin.delete_topic MasterAdmin.remove_topic
TubeMQClient: start bootstrap
    Nothing has to be started: use it in a `with` block, which closes it.
    = TubeMQClient.close
TubeMQClient: readStream writeStream format option load
    That is Spark's: use `spark.readStream.format("tubemq")`, or `read` and `read_arrow` without it.
    = TubeMQClient.read TubeMQClient.read_arrow
Producer: produce
    Use `send(topic, value)`.
    = Producer.send
Producer: send_and_wait
    Use `send(topic, value).result()`, or with asyncio `await (await send(topic, value))`.
    = Producer.send SendFuture.result
Producer: poll
    Nothing has to be polled: `callback` of `send` is called by itself.
    = Producer.send(callback)
Producer: partitions_for list_topics
    Use `publishable(topic)`.
    = Producer.publishable
Producer: metrics
    Use `statistics()`.
    = Producer.statistics
Producer: start
    Nothing has to be started: use it in a `with` block, which closes it.
    = Producer.close
Producer: stop purge
    Use `close()`.
    = Producer.close
Producer: create_batch
    Use `send_batch(SendBatch.of(topic, values))`.
    = Producer.send_batch SendBatch.of
Producer: init_transactions begin_transaction commit_transaction abort_transaction transaction
  send_offsets_to_transaction
    TubeMQ has no transactions: each message is stored by itself.
GroupConsumer AssignedConsumer: poll consume getone getmany
    Use `fetch()`, which returns a batch of one partition, or None.
    = GroupConsumer.fetch
GroupConsumer AssignedConsumer: commit commit_async store_offsets
    Use `confirm(batch)`, which confirms a whole batch.
    = GroupConsumer.confirm
GroupConsumer AssignedConsumer: seek_to_committed
    Use `confirm(batch, consumed=False)`, after which the batch comes again.
    = GroupConsumer.confirm(consumed)
GroupConsumer AssignedConsumer: subscribe
    Topics are named when the consumer is made: use `client.group_consumer(topics)`.
    = TubeMQClient.group_consumer
GroupConsumer: assign incremental_assign unassign incremental_unassign
    The master assigns partitions to a group consumer: use `client.assigned_consumer(topics)`.
    = TubeMQClient.assigned_consumer
AssignedConsumer: assign incremental_assign
    Use `connect(partition, offset)`.
    = AssignedConsumer.connect
AssignedConsumer: unassign incremental_unassign
    Use `disconnect(partition)`.
    = AssignedConsumer.disconnect
GroupConsumer AssignedConsumer: unsubscribe
    Use `close()`.
    = GroupConsumer.close
GroupConsumer AssignedConsumer: assignment
    Use `connected`.
    = GroupConsumer.connected
GroupConsumer AssignedConsumer: position
    Use `positions()`.
    = GroupConsumer.positions
GroupConsumer AssignedConsumer: highwater end_offsets beginning_offsets get_watermark_offsets
    Use `client.offsets(topic)`, or `lag()` for what is left to read.
    = TubeMQClient.offsets GroupConsumer.lag
GroupConsumer AssignedConsumer: offsets_for_times
    Use `client.offsets_at(topic, time)`, or `seek_to_time(time)` to go there.
    = TubeMQClient.offsets_at GroupConsumer.seek_to_time
GroupConsumer AssignedConsumer: partitions_for_topic available_partitions_for_topic
    Use `client.partitions(topic)`.
    = TubeMQClient.partitions
GroupConsumer AssignedConsumer: list_topics topics
    Use `client.topics()`.
    = TubeMQClient.topics
GroupConsumer AssignedConsumer: group_id
    Use `config.group`.
    = GroupConsumer.config ClientConfig.group
GroupConsumer AssignedConsumer: memberid consumer_id
    Use `client_id`.
    = GroupConsumer.client_id
GroupConsumer AssignedConsumer: start
    Use `open()`, which a `with` block calls.
    = GroupConsumer.open
GroupConsumer AssignedConsumer: wakeup
    Use `stop()`.
    = GroupConsumer.stop
Record: headers
    Use `attributes`, a mapping of texts.
    = Record.attributes
Record: key
    TubeMQ stores no keys: send what readers need among `attributes`.
    = Record.attributes
Record: body data payload content
    Use `value`.
    = Record.value
Record: timestamp_type
    There is only the time that its producer gave it: use `message_time`.
    = Record.message_time
Record Batch: error
    Errors do not come as messages: `fetch` raises them.
    = GroupConsumer.fetch
Batch: messages
    Use `records`, or loop over the batch.
    = Batch.records
Batch: value key headers attributes timestamp
    A batch has many messages: loop over it, and each record has a `value` and `attributes`.
    = Record.value Record.attributes
Batch: commit confirm ack
    Use `confirm(batch)` of its consumer.
    = GroupConsumer.confirm
SendFuture: get
    Use `result(timeout)`.
    = SendFuture.result
SendFuture: add_callback add_errback
    Use `callback` of `send`, which takes the result or the error.
    = Producer.send(callback)
SendFuture: succeeded failed is_done
    Use `done()`, and then `exception()`.
    = SendFuture.done SendFuture.exception
SendResult: timestamp
    Use `append_time_ms`.
    = SendResult.append_time_ms
SendResult: topic_partition
    Use `partition`.
    = SendResult.partition
MasterAdmin: create_topic create_topics
    Use `add_topic(topics, broker_ids)`.
    = MasterAdmin.add_topic
MasterAdmin: list_topics
    Use `topics()`.
    = MasterAdmin.topics
MasterAdmin: describe_topics
    Use `topic_info(topic)`.
    = MasterAdmin.topic_info
MasterAdmin: delete_topics
    Use `delete_topic`, which keeps the data, and then `remove_topic`.
    = MasterAdmin.delete_topic MasterAdmin.remove_topic
MasterAdmin: create_partitions alter_configs incremental_alter_configs
    Use `modify_topic(topic, broker_ids, numPartitions=...)`.
    = MasterAdmin.modify_topic
MasterAdmin: list_consumer_groups
    Use `online_groups()`.
    = MasterAdmin.online_groups
MasterAdmin: describe_consumer_groups
    Use `consumer_group(group)`.
    = MasterAdmin.consumer_group
MasterAdmin: describe_cluster
    Use `group_nodes()` for the masters, and `broker_run_status()` for the brokers.
    = MasterAdmin.group_nodes MasterAdmin.broker_run_status
MasterAdmin: close
    Nothing has to be closed: each call has a connection of its own.
""")
)

ARGUMENTS: Final = tuple(
    _rows("""
TubeMQClient: bootstrap_servers masters servers brokers hosts
    Use `TubeMQClient.connect("host:8715")`.
    = TubeMQClient.connect(masters)
AsyncTubeMQClient: bootstrap_servers masters servers brokers hosts
    Use `AsyncTubeMQClient.connect("host:8715")`.
    = AsyncTubeMQClient.connect(masters)
AsyncTubeMQClient: group_id group
    Use `AsyncTubeMQClient.connect("host:8715", group=...)`.
    = AsyncTubeMQClient.connect(group)
TubeMQClient.connect ClientConfig: bootstrap_servers servers brokers hosts
    Use `masters`, the addresses of the masters.
    = TubeMQClient.connect(masters) ClientConfig.masters
TubeMQClient: group_id group
    Use `TubeMQClient.connect("host:8715", group=...)`.
    = TubeMQClient.connect(group)
TubeMQClient.connect ClientConfig: group_id consumer_group
    Use `group`.
    = TubeMQClient.connect(group) ClientConfig.group
TubeMQClient.group_consumer TubeMQClient.assigned_consumer: group_id group consumer_group
    The group is the client's: use `group` of `TubeMQClient.connect`.
    = TubeMQClient.connect(group)
settings: client_id group_instance_id
    Each producer and consumer gets a name of its own, which is its `client_id`.
    = Producer.client_id GroupConsumer.client_id
settings: security_protocol ssl_context ssl_cafile ssl_certfile ssl_keyfile
    Use `tls`, a `TlsConfig` with the names of files.
    = TubeMQClient.connect(tls) TlsConfig.ca_file
settings: sasl_mechanism sasl_plain_username sasl_plain_password sasl_username sasl_password
    Use `username` and `password`.
    = TubeMQClient.connect(username) TubeMQClient.connect(password)
settings: request_timeout_ms
    Use `rpc_timeout_ms` of `ClientConfig`, or in the URL of `TubeMQClient.from_url`.
    = ClientConfig.rpc_timeout_ms TubeMQClient.from_url
settings: session_timeout_ms heartbeat_interval_ms
    Use `heartbeat_period_ms` of `ClientConfig`; how long servers wait for heartbeats is theirs to say.
    = ClientConfig.heartbeat_period_ms
settings: auto_offset_reset startingOffsets starting_offsets
    Use `consume_position`: `first`, `latest` or `alwaysLatest`.
    = ConsumerConfig.consume_position
settings: enable_auto_commit auto_commit_interval_ms enable_auto_offset_store
    Confirm batches with `confirm`, or have `messages` or `run` of the consumer do it.
    = GroupConsumer.confirm GroupConsumer.messages GroupConsumer.run
settings: max_poll_interval_ms
    Use `confirm_timeout_ms` of `ConsumerConfig`.
    = ConsumerConfig.confirm_timeout_ms
settings: max_poll_records fetch_min_bytes fetch_max_bytes max_partition_fetch_bytes
    The broker decides how large a batch is, by `transferSize` in its configuration.
settings: partition_assignment_strategy
    The master shares out the partitions of a group; use `assigned_consumer` to choose them yourself.
    = TubeMQClient.assigned_consumer
TubeMQClient.group_consumer: on_assign on_partitions_assigned listener
    Use `on_assigned`.
    = TubeMQClient.group_consumer(on_assigned)
TubeMQClient.group_consumer: on_revoke on_partitions_revoked on_lost
    Use `on_revoked`.
    = TubeMQClient.group_consumer(on_revoked)
TubeMQClient.group_consumer TubeMQClient.assigned_consumer: topic subscribe
    Use `topics`; one text is one topic.
    = TubeMQClient.group_consumer(topics) TubeMQClient.assigned_consumer(topics)
TubeMQClient.group_consumer TubeMQClient.assigned_consumer: pattern subscribePattern
    A consumer names its topics: use `topics`.
    = TubeMQClient.group_consumer(topics)
settings: isolation_level transactional_id
    TubeMQ has no transactions: each message is stored by itself.
settings: key_serializer value_serializer key_deserializer value_deserializer
    Give `send` bytes or text, and take `value`, `text()` or `json()` of a record.
    = Producer.send Record.value
settings: acks required_acks
    There is no choice: a message has its result when its broker has stored it.
    = SendResult.partition
settings: enable_idempotence
    TubeMQ does not recognise repeats: `may_be_repeated` of a result tells of them.
    = SendResult.may_be_repeated
settings: compression_type compression_codec
    TubeMQ does not compress messages: compress the value before `send`.
    = Producer.send
TubeMQClient TubeMQClient.connect TubeMQClient.producer ClientConfig ConsumerConfig: linger
  queue_buffering_max_ms
    Use `linger_ms` of `producer`.
    = TubeMQClient.producer(linger_ms)
TubeMQClient TubeMQClient.connect: linger_ms partitioner keep_order
    Use this argument with `producer`.
    = TubeMQClient.producer(linger_ms) TubeMQClient.producer(partitioner) TubeMQClient.producer(keep_order)
settings: batch_size max_batch_size buffer_memory max_in_flight_requests_per_connection
    Use `max_in_flight` and `max_in_flight_bytes` of `ClientConfig`.
    = ClientConfig.max_in_flight ClientConfig.max_in_flight_bytes
settings: retries retry_backoff_ms
    A message is sent again by itself until `delivery_timeout_ms` have passed.
    = ClientConfig.delivery_timeout_ms
Producer.send: headers
    Use `attributes`, a mapping of texts.
    = Producer.send(attributes)
Producer.send: timestamp timestamp_ms
    Use `message_time`, a `datetime`, which is kept to the minute.
    = Producer.send(message_time)
Producer.send: on_delivery on_success
    Use `callback`, or with asyncio await the future that `send` returns.
    = Producer.send(callback)
Producer.send: data body payload message
    Use `value`.
    = Producer.send(value)
Producer.send: timeout timeout_ms
    Use `delivery_timeout_ms` of `client.producer`.
    = TubeMQClient.producer(delivery_timeout_ms)
AsyncProducer.send: callback
    Await the future that `send` returns.
    = AsyncProducer.send
GroupConsumer.fetch AssignedConsumer.fetch: timeout
    Use `timeout_ms`, in milliseconds.
    = GroupConsumer.fetch(timeout_ms)
GroupConsumer.fetch AssignedConsumer.fetch: max_records num_messages max_messages
    The broker decides how large a batch is; `messages` yields records one by one.
    = GroupConsumer.messages
GroupConsumer.confirm AssignedConsumer.confirm: message offsets asynchronous
    Use `batch`: a batch is confirmed as a whole.
    = GroupConsumer.confirm(batch)
Producer.flush Producer.close: timeout_ms
    Use `timeout`, in seconds.
    = Producer.flush(timeout) Producer.close(timeout)
TubeMQClient.read: startingOffsets starting_offsets startingTimestamp from_offset
    Use `start`.
    = TubeMQClient.read(start)
TubeMQClient.read: endingOffsets ending_offsets endingTimestamp
    Use `end`.
    = TubeMQClient.read(end)
TubeMQClient.read: max_records num_messages max_messages
    Use `limit`.
    = TubeMQClient.read(limit)
""")
)
