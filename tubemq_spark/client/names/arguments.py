"""Settings and arguments that clients of Kafka have; see ``others``."""

from typing import Final

from tubemq_spark.client.names.others import NO_TRANSACTIONS, row

SETTINGS: Final = (
    "TubeMQClient",
    "TubeMQClient.connect",
    "TubeMQClient.producer",
    "TubeMQClient.group_consumer",
    "TubeMQClient.assigned_consumer",
    "ClientConfig",
    "ConsumerConfig",
)
"""Where settings are given; users of other clients give all of them in one place."""
_SETTINGS: Final = " ".join(SETTINGS)
_AFTER_DEADLINE: Final = "A message is sent again by itself until `delivery_timeout_ms` have passed."
_FACTORIES: Final = "TubeMQClient.group_consumer TubeMQClient.assigned_consumer"

ARGUMENTS: Final = (
    # Connecting.
    row(
        "TubeMQClient",
        "bootstrap_servers masters servers brokers hosts",
        'Use `TubeMQClient.connect("host:8715")`.',
        "TubeMQClient.connect(masters)",
    ),
    row(
        "AsyncTubeMQClient",
        "bootstrap_servers masters servers brokers hosts",
        'Use `AsyncTubeMQClient.connect("host:8715")`.',
        "AsyncTubeMQClient.connect(masters)",
    ),
    row(
        "AsyncTubeMQClient",
        "group_id group",
        'Use `AsyncTubeMQClient.connect("host:8715", group=...)`.',
        "AsyncTubeMQClient.connect(group)",
    ),
    row(
        "TubeMQClient.connect ClientConfig",
        "bootstrap_servers servers brokers hosts",
        "Use `masters`, the addresses of the masters.",
        "TubeMQClient.connect(masters)",
        "ClientConfig.masters",
    ),
    row(
        "TubeMQClient",
        "group_id group",
        'Use `TubeMQClient.connect("host:8715", group=...)`.',
        "TubeMQClient.connect(group)",
    ),
    row(
        "TubeMQClient.connect ClientConfig",
        "group_id consumer_group",
        "Use `group`.",
        "TubeMQClient.connect(group)",
        "ClientConfig.group",
    ),
    row(
        _FACTORIES,
        "group_id group consumer_group",
        "The group is the client's: use `group` of `TubeMQClient.connect`.",
        "TubeMQClient.connect(group)",
    ),
    row(
        _SETTINGS,
        "client_id group_instance_id",
        "Each producer and consumer gets a name of its own, which is its `client_id`.",
        "Producer.client_id",
        "GroupConsumer.client_id",
    ),
    row(
        _SETTINGS,
        "security_protocol ssl_context ssl_cafile ssl_certfile ssl_keyfile",
        "Use `tls`, a `TlsConfig` with the names of files.",
        "TubeMQClient.connect(tls)",
        "TlsConfig.ca_file",
    ),
    row(
        _SETTINGS,
        "sasl_mechanism sasl_plain_username sasl_plain_password sasl_username sasl_password",
        "Use `username` and `password`.",
        "TubeMQClient.connect(username)",
        "TubeMQClient.connect(password)",
    ),
    row(
        _SETTINGS,
        "request_timeout_ms",
        "Use `rpc_timeout_ms` of `ClientConfig`, or in the URL of `TubeMQClient.from_url`.",
        "ClientConfig.rpc_timeout_ms",
        "TubeMQClient.from_url",
    ),
    row(
        _SETTINGS,
        "session_timeout_ms heartbeat_interval_ms",
        "Use `heartbeat_period_ms` of `ClientConfig`; how long servers wait for heartbeats is theirs to say.",
        "ClientConfig.heartbeat_period_ms",
    ),
    # Consuming.
    row(
        _SETTINGS,
        "auto_offset_reset startingOffsets starting_offsets",
        "Use `consume_position`: `first`, `latest` or `alwaysLatest`.",
        "ConsumerConfig.consume_position",
    ),
    row(
        _SETTINGS,
        "enable_auto_commit auto_commit_interval_ms enable_auto_offset_store",
        "Confirm batches with `confirm`, or have `messages` or `run` of the consumer do it.",
        "GroupConsumer.confirm",
        "GroupConsumer.messages",
        "GroupConsumer.run",
    ),
    row(
        _SETTINGS,
        "max_poll_interval_ms",
        "Use `confirm_timeout_ms` of `ConsumerConfig`.",
        "ConsumerConfig.confirm_timeout_ms",
    ),
    row(
        _SETTINGS,
        "max_poll_records fetch_min_bytes fetch_max_bytes max_partition_fetch_bytes",
        "The broker decides how large a batch is, by `transferSize` in its configuration.",
    ),
    row(
        _SETTINGS,
        "partition_assignment_strategy",
        "The master shares out the partitions of a group; use `assigned_consumer` to choose them yourself.",
        "TubeMQClient.assigned_consumer",
    ),
    row(
        "TubeMQClient.group_consumer",
        "on_assign on_partitions_assigned listener",
        "Use `on_assigned`.",
        "TubeMQClient.group_consumer(on_assigned)",
    ),
    row(
        "TubeMQClient.group_consumer",
        "on_revoke on_partitions_revoked on_lost",
        "Use `on_revoked`.",
        "TubeMQClient.group_consumer(on_revoked)",
    ),
    row(
        _FACTORIES,
        "topic subscribe",
        "Use `topics`; one text is one topic.",
        "TubeMQClient.group_consumer(topics)",
        "TubeMQClient.assigned_consumer(topics)",
    ),
    row(
        _FACTORIES,
        "pattern subscribePattern",
        "A consumer names its topics: use `topics`.",
        "TubeMQClient.group_consumer(topics)",
    ),
    row(_SETTINGS, "isolation_level transactional_id", NO_TRANSACTIONS),
    row(
        _SETTINGS,
        "key_serializer value_serializer key_deserializer value_deserializer",
        "Give `send` bytes or text, and take `value`, `text()` or `json()` of a record.",
        "Producer.send",
        "Record.value",
    ),
    # Producing.
    row(
        _SETTINGS,
        "acks required_acks",
        "There is no choice: a message has its result when its broker has stored it.",
        "SendResult.partition",
    ),
    row(
        _SETTINGS,
        "enable_idempotence",
        "TubeMQ does not recognise repeats: `may_be_repeated` of a result tells of them.",
        "SendResult.may_be_repeated",
    ),
    row(
        _SETTINGS,
        "compression_type compression_codec",
        "TubeMQ does not compress messages: compress the value before `send`.",
        "Producer.send",
    ),
    row(
        "TubeMQClient TubeMQClient.connect TubeMQClient.producer ClientConfig ConsumerConfig",
        "linger queue_buffering_max_ms",
        "Use `linger_ms` of `producer`.",
        "TubeMQClient.producer(linger_ms)",
    ),
    row(
        "TubeMQClient TubeMQClient.connect",
        "linger_ms partitioner keep_order",
        "Use this argument with `producer`.",
        "TubeMQClient.producer(linger_ms)",
        "TubeMQClient.producer(partitioner)",
        "TubeMQClient.producer(keep_order)",
    ),
    row(
        _SETTINGS,
        "batch_size max_batch_size buffer_memory max_in_flight_requests_per_connection",
        "Use `max_in_flight` and `max_in_flight_bytes` of `ClientConfig`.",
        "ClientConfig.max_in_flight",
        "ClientConfig.max_in_flight_bytes",
    ),
    row(_SETTINGS, "retries retry_backoff_ms", _AFTER_DEADLINE, "ClientConfig.delivery_timeout_ms"),
    row(
        "Producer.send",
        "headers",
        "Use `attributes`, a mapping of texts.",
        "Producer.send(attributes)",
    ),
    row(
        "Producer.send",
        "timestamp timestamp_ms",
        "Use `message_time`, a `datetime`, which is kept to the minute.",
        "Producer.send(message_time)",
    ),
    row(
        "Producer.send",
        "on_delivery on_success",
        "Use `callback`, or with asyncio await the future that `send` returns.",
        "Producer.send(callback)",
    ),
    row("Producer.send", "data body payload message", "Use `value`.", "Producer.send(value)"),
    row(
        "Producer.send",
        "timeout timeout_ms",
        "Use `delivery_timeout_ms` of `client.producer`.",
        "TubeMQClient.producer(delivery_timeout_ms)",
    ),
    row(
        "AsyncProducer.send",
        "callback",
        "Await the future that `send` returns.",
        "AsyncProducer.send",
    ),
    # Calls of consumers.
    row(
        "GroupConsumer.fetch AssignedConsumer.fetch",
        "timeout",
        "Use `timeout_ms`, in milliseconds.",
        "GroupConsumer.fetch(timeout_ms)",
    ),
    row(
        "GroupConsumer.fetch AssignedConsumer.fetch",
        "max_records num_messages max_messages",
        "The broker decides how large a batch is; `messages` yields records one by one.",
        "GroupConsumer.messages",
    ),
    row(
        "GroupConsumer.confirm AssignedConsumer.confirm",
        "message offsets asynchronous",
        "Use `batch`: a batch is confirmed as a whole.",
        "GroupConsumer.confirm(batch)",
    ),
    row(
        "Producer.flush Producer.close",
        "timeout_ms",
        "Use `timeout`, in seconds.",
        "Producer.flush(timeout)",
        "Producer.close(timeout)",
    ),
    row(
        "TubeMQClient.read",
        "startingOffsets starting_offsets startingTimestamp from_offset",
        "Use `start`.",
        "TubeMQClient.read(start)",
    ),
    row(
        "TubeMQClient.read",
        "endingOffsets ending_offsets endingTimestamp",
        "Use `end`.",
        "TubeMQClient.read(end)",
    ),
    row(
        "TubeMQClient.read",
        "max_records num_messages max_messages",
        "Use `limit`.",
        "TubeMQClient.read(limit)",
    ),
)
