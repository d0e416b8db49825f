from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TubeError(_message.Message):
    __slots__ = ("condition", "kind", "parameters", "text", "retriable", "about", "row", "code", "retry_after_ms", "outcome")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[TubeError.Outcome]
        OUTCOME_NOT_STORED: _ClassVar[TubeError.Outcome]
        OUTCOME_UNKNOWN: _ClassVar[TubeError.Outcome]
    OUTCOME_UNSPECIFIED: TubeError.Outcome
    OUTCOME_NOT_STORED: TubeError.Outcome
    OUTCOME_UNKNOWN: TubeError.Outcome
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Parameter
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Parameter, _Mapping]] = ...) -> None: ...
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RETRIABLE_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    condition: str
    kind: str
    parameters: _containers.MessageMap[str, Parameter]
    text: str
    retriable: bool
    about: str
    row: int
    code: int
    retry_after_ms: int
    outcome: TubeError.Outcome
    def __init__(self, condition: _Optional[str] = ..., kind: _Optional[str] = ..., parameters: _Optional[_Mapping[str, Parameter]] = ..., text: _Optional[str] = ..., retriable: bool = ..., about: _Optional[str] = ..., row: _Optional[int] = ..., code: _Optional[int] = ..., retry_after_ms: _Optional[int] = ..., outcome: _Optional[_Union[TubeError.Outcome, str]] = ...) -> None: ...

class Parameter(_message.Message):
    __slots__ = ("text", "number", "real", "flag")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    text: str
    number: int
    real: float
    flag: bool
    def __init__(self, text: _Optional[str] = ..., number: _Optional[int] = ..., real: _Optional[float] = ..., flag: bool = ...) -> None: ...

class RpcStatus(_message.Message):
    __slots__ = ("code", "message", "details")
    class Any(_message.Message):
        __slots__ = ("type_url", "value")
        TYPE_URL_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        type_url: str
        value: bytes
        def __init__(self, type_url: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    details: _containers.RepeatedCompositeFieldContainer[RpcStatus.Any]
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[_Iterable[_Union[RpcStatus.Any, _Mapping]]] = ...) -> None: ...

class RpcErrorInfo(_message.Message):
    __slots__ = ("reason", "domain", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REASON_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    reason: str
    domain: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, reason: _Optional[str] = ..., domain: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class RpcRetryInfo(_message.Message):
    __slots__ = ("retry_delay",)
    class Duration(_message.Message):
        __slots__ = ("seconds", "nanos")
        SECONDS_FIELD_NUMBER: _ClassVar[int]
        NANOS_FIELD_NUMBER: _ClassVar[int]
        seconds: int
        nanos: int
        def __init__(self, seconds: _Optional[int] = ..., nanos: _Optional[int] = ...) -> None: ...
    RETRY_DELAY_FIELD_NUMBER: _ClassVar[int]
    retry_delay: RpcRetryInfo.Duration
    def __init__(self, retry_delay: _Optional[_Union[RpcRetryInfo.Duration, _Mapping]] = ...) -> None: ...

class SessionRef(_message.Message):
    __slots__ = ("client_id", "epoch", "secret")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    epoch: int
    secret: bytes
    def __init__(self, client_id: _Optional[str] = ..., epoch: _Optional[int] = ..., secret: _Optional[bytes] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("client_id", "epoch", "secret", "settings", "language", "version")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    epoch: int
    secret: bytes
    settings: SessionSettings
    language: str
    version: str
    def __init__(self, client_id: _Optional[str] = ..., epoch: _Optional[int] = ..., secret: _Optional[bytes] = ..., settings: _Optional[_Union[SessionSettings, _Mapping]] = ..., language: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class SessionSettings(_message.Message):
    __slots__ = ("group", "username", "password", "reader_groups", "message_types", "rpc_timeout_ms", "connect_timeout_ms", "register_attempts", "register_retry_ms", "lease_wait_ms", "fetch_timeout_ms", "delivery_timeout_ms", "retry_ambiguous", "partitioner", "max_in_flight", "max_in_flight_bytes", "checksums", "keep_order", "consume_position", "confirm_timeout_ms", "rollback", "not_found_wait_ms", "rebalance_wait_ms", "heartbeat_period_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    READER_GROUPS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPES_FIELD_NUMBER: _ClassVar[int]
    RPC_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    CONNECT_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REGISTER_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    REGISTER_RETRY_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    FETCH_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    RETRY_AMBIGUOUS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONER_FIELD_NUMBER: _ClassVar[int]
    MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_IN_FLIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    KEEP_ORDER_FIELD_NUMBER: _ClassVar[int]
    CONSUME_POSITION_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_PERIOD_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    username: str
    password: str
    reader_groups: _containers.RepeatedScalarFieldContainer[str]
    message_types: _containers.RepeatedScalarFieldContainer[str]
    rpc_timeout_ms: int
    connect_timeout_ms: int
    register_attempts: int
    register_retry_ms: int
    lease_wait_ms: int
    fetch_timeout_ms: int
    delivery_timeout_ms: int
    retry_ambiguous: bool
    partitioner: str
    max_in_flight: int
    max_in_flight_bytes: int
    checksums: bool
    keep_order: bool
    consume_position: str
    confirm_timeout_ms: int
    rollback: bool
    not_found_wait_ms: int
    rebalance_wait_ms: int
    heartbeat_period_ms: int
    def __init__(self, group: _Optional[str] = ..., username: _Optional[str] = ..., password: _Optional[str] = ..., reader_groups: _Optional[_Iterable[str]] = ..., message_types: _Optional[_Iterable[str]] = ..., rpc_timeout_ms: _Optional[int] = ..., connect_timeout_ms: _Optional[int] = ..., register_attempts: _Optional[int] = ..., register_retry_ms: _Optional[int] = ..., lease_wait_ms: _Optional[int] = ..., fetch_timeout_ms: _Optional[int] = ..., delivery_timeout_ms: _Optional[int] = ..., retry_ambiguous: bool = ..., partitioner: _Optional[str] = ..., max_in_flight: _Optional[int] = ..., max_in_flight_bytes: _Optional[int] = ..., checksums: bool = ..., keep_order: bool = ..., consume_position: _Optional[str] = ..., confirm_timeout_ms: _Optional[int] = ..., rollback: bool = ..., not_found_wait_ms: _Optional[int] = ..., rebalance_wait_ms: _Optional[int] = ..., heartbeat_period_ms: _Optional[int] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("lease_ms", "heartbeat_ms", "max_message_bytes", "gateway", "capabilities", "max_batch_bytes", "protocol_revision")
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_REVISION_FIELD_NUMBER: _ClassVar[int]
    lease_ms: int
    heartbeat_ms: int
    max_message_bytes: int
    gateway: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    max_batch_bytes: int
    protocol_revision: int
    def __init__(self, lease_ms: _Optional[int] = ..., heartbeat_ms: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., gateway: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ..., max_batch_bytes: _Optional[int] = ..., protocol_revision: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("seen",)
    SEEN_FIELD_NUMBER: _ClassVar[int]
    seen: int
    def __init__(self, seen: _Optional[int] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("lease_ms", "draining", "events", "gateway")
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    lease_ms: int
    draining: bool
    events: _containers.RepeatedCompositeFieldContainer[SessionEvent]
    gateway: str
    def __init__(self, lease_ms: _Optional[int] = ..., draining: bool = ..., events: _Optional[_Iterable[_Union[SessionEvent, _Mapping]]] = ..., gateway: _Optional[str] = ...) -> None: ...

class SessionEventsRequest(_message.Message):
    __slots__ = ("close_when_lost",)
    CLOSE_WHEN_LOST_FIELD_NUMBER: _ClassVar[int]
    close_when_lost: bool
    def __init__(self, close_when_lost: bool = ...) -> None: ...

class SessionEventsResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: SessionEvent
    def __init__(self, event: _Optional[_Union[SessionEvent, _Mapping]] = ...) -> None: ...

class SessionEvent(_message.Message):
    __slots__ = ("number", "draining", "route_changed", "partition_lost", "offset_corrected", "members_changed", "partitions_changed")
    class Draining(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class RouteChanged(_message.Message):
        __slots__ = ("topic", "partitions")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        PARTITIONS_FIELD_NUMBER: _ClassVar[int]
        topic: str
        partitions: int
        def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[int] = ...) -> None: ...
    class PartitionLost(_message.Message):
        __slots__ = ("partition", "error")
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        partition: Partition
        error: TubeError
        def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ..., error: _Optional[_Union[TubeError, _Mapping]] = ...) -> None: ...
    class OffsetCorrected(_message.Message):
        __slots__ = ("partition", "loss")
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        LOSS_FIELD_NUMBER: _ClassVar[int]
        partition: Partition
        loss: Loss
        def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ..., loss: _Optional[_Union[Loss, _Mapping]] = ...) -> None: ...
    class MembersChanged(_message.Message):
        __slots__ = ("group",)
        GROUP_FIELD_NUMBER: _ClassVar[int]
        group: str
        def __init__(self, group: _Optional[str] = ...) -> None: ...
    class PartitionsChanged(_message.Message):
        __slots__ = ("partitions",)
        PARTITIONS_FIELD_NUMBER: _ClassVar[int]
        partitions: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
        def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionOffset, _Mapping]]] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    ROUTE_CHANGED_FIELD_NUMBER: _ClassVar[int]
    PARTITION_LOST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_CORRECTED_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    number: int
    draining: SessionEvent.Draining
    route_changed: SessionEvent.RouteChanged
    partition_lost: SessionEvent.PartitionLost
    offset_corrected: SessionEvent.OffsetCorrected
    members_changed: SessionEvent.MembersChanged
    partitions_changed: SessionEvent.PartitionsChanged
    def __init__(self, number: _Optional[int] = ..., draining: _Optional[_Union[SessionEvent.Draining, _Mapping]] = ..., route_changed: _Optional[_Union[SessionEvent.RouteChanged, _Mapping]] = ..., partition_lost: _Optional[_Union[SessionEvent.PartitionLost, _Mapping]] = ..., offset_corrected: _Optional[_Union[SessionEvent.OffsetCorrected, _Mapping]] = ..., members_changed: _Optional[_Union[SessionEvent.MembersChanged, _Mapping]] = ..., partitions_changed: _Optional[_Union[SessionEvent.PartitionsChanged, _Mapping]] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Partition(_message.Message):
    __slots__ = ("topic", "broker_id", "partition_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    broker_id: int
    partition_id: int
    def __init__(self, topic: _Optional[str] = ..., broker_id: _Optional[int] = ..., partition_id: _Optional[int] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("host", "port")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    def __init__(self, host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class QueryRouteRequest(_message.Message):
    __slots__ = ("topics", "missing_ok", "max_age_ms")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MISSING_OK_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    missing_ok: bool
    max_age_ms: int
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., missing_ok: bool = ..., max_age_ms: _Optional[int] = ...) -> None: ...

class QueryRouteResponse(_message.Message):
    __slots__ = ("brokers", "partitions", "missing_topics", "unread", "age_ms")
    class Located(_message.Message):
        __slots__ = ("partition", "broker")
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        BROKER_FIELD_NUMBER: _ClassVar[int]
        partition: Partition
        broker: int
        def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ..., broker: _Optional[int] = ...) -> None: ...
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    MISSING_TOPICS_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    brokers: _containers.RepeatedCompositeFieldContainer[Endpoint]
    partitions: _containers.RepeatedCompositeFieldContainer[QueryRouteResponse.Located]
    missing_topics: _containers.RepeatedScalarFieldContainer[str]
    unread: _containers.RepeatedCompositeFieldContainer[Partition]
    age_ms: int
    def __init__(self, brokers: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., partitions: _Optional[_Iterable[_Union[QueryRouteResponse.Located, _Mapping]]] = ..., missing_topics: _Optional[_Iterable[str]] = ..., unread: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., age_ms: _Optional[int] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics", "next_page_token")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    next_page_token: str
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CheckTopicRequest(_message.Message):
    __slots__ = ("topic", "publishable", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PUBLISHABLE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    publishable: bool
    partition: Place
    def __init__(self, topic: _Optional[str] = ..., publishable: bool = ..., partition: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class CheckTopicResponse(_message.Message):
    __slots__ = ("partitions", "max_message_bytes")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    max_message_bytes: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., max_message_bytes: _Optional[int] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("topic", "stores", "partitions", "broker_ids")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    BROKER_IDS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    stores: int
    partitions: int
    broker_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., stores: _Optional[int] = ..., partitions: _Optional[int] = ..., broker_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class CreateTopicResponse(_message.Message):
    __slots__ = ("created", "broker_ids")
    CREATED_FIELD_NUMBER: _ClassVar[int]
    BROKER_IDS_FIELD_NUMBER: _ClassVar[int]
    created: bool
    broker_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, created: bool = ..., broker_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Store(_message.Message):
    __slots__ = ("topic", "broker_id", "store")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    broker_id: int
    store: int
    def __init__(self, topic: _Optional[str] = ..., broker_id: _Optional[int] = ..., store: _Optional[int] = ...) -> None: ...

class QueryBoundsRequest(_message.Message):
    __slots__ = ("stores", "flushed", "timeout_ms")
    STORES_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    stores: _containers.RepeatedCompositeFieldContainer[Store]
    flushed: bool
    timeout_ms: int
    def __init__(self, stores: _Optional[_Iterable[_Union[Store, _Mapping]]] = ..., flushed: bool = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class QueryBoundsResponse(_message.Message):
    __slots__ = ("answers",)
    class Answer(_message.Message):
        __slots__ = ("bounds", "error")
        BOUNDS_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        bounds: Bounds
        error: TubeError
        def __init__(self, bounds: _Optional[_Union[Bounds, _Mapping]] = ..., error: _Optional[_Union[TubeError, _Mapping]] = ...) -> None: ...
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[QueryBoundsResponse.Answer]
    def __init__(self, answers: _Optional[_Iterable[_Union[QueryBoundsResponse.Answer, _Mapping]]] = ...) -> None: ...

class Bounds(_message.Message):
    __slots__ = ("earliest", "latest")
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    earliest: int
    latest: int
    def __init__(self, earliest: _Optional[int] = ..., latest: _Optional[int] = ...) -> None: ...

class PartitionOffset(_message.Message):
    __slots__ = ("partition", "offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: Partition
    offset: int
    def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

class QueryFirstReadableRequest(_message.Message):
    __slots__ = ("begins",)
    class Begin(_message.Message):
        __slots__ = ("partition", "bounds")
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        BOUNDS_FIELD_NUMBER: _ClassVar[int]
        partition: Partition
        bounds: Bounds
        def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ..., bounds: _Optional[_Union[Bounds, _Mapping]] = ...) -> None: ...
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    begins: _containers.RepeatedCompositeFieldContainer[QueryFirstReadableRequest.Begin]
    def __init__(self, begins: _Optional[_Iterable[_Union[QueryFirstReadableRequest.Begin, _Mapping]]] = ...) -> None: ...

class QueryFirstReadableResponse(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    def __init__(self, offsets: _Optional[_Iterable[_Union[PartitionOffset, _Mapping]]] = ...) -> None: ...

class QueryGroupPositionsRequest(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ...) -> None: ...

class QueryGroupPositionsResponse(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    def __init__(self, offsets: _Optional[_Iterable[_Union[PartitionOffset, _Mapping]]] = ...) -> None: ...

class QueryStoredOffsetsRequest(_message.Message):
    __slots__ = ("group", "topics", "page_size", "page_token")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    group: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    page_size: int
    page_token: str
    def __init__(self, group: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class QueryStoredOffsetsResponse(_message.Message):
    __slots__ = ("known", "failures", "next_page_token")
    class Stored(_message.Message):
        __slots__ = ("group", "partition", "committed", "in_flight", "latest", "consumer")
        GROUP_FIELD_NUMBER: _ClassVar[int]
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        COMMITTED_FIELD_NUMBER: _ClassVar[int]
        IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
        LATEST_FIELD_NUMBER: _ClassVar[int]
        CONSUMER_FIELD_NUMBER: _ClassVar[int]
        group: str
        partition: Partition
        committed: int
        in_flight: int
        latest: int
        consumer: str
        def __init__(self, group: _Optional[str] = ..., partition: _Optional[_Union[Partition, _Mapping]] = ..., committed: _Optional[int] = ..., in_flight: _Optional[int] = ..., latest: _Optional[int] = ..., consumer: _Optional[str] = ...) -> None: ...
    class Failure(_message.Message):
        __slots__ = ("broker_id", "error")
        BROKER_ID_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        broker_id: int
        error: TubeError
        def __init__(self, broker_id: _Optional[int] = ..., error: _Optional[_Union[TubeError, _Mapping]] = ...) -> None: ...
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    known: _containers.RepeatedCompositeFieldContainer[QueryStoredOffsetsResponse.Stored]
    failures: _containers.RepeatedCompositeFieldContainer[QueryStoredOffsetsResponse.Failure]
    next_page_token: str
    def __init__(self, known: _Optional[_Iterable[_Union[QueryStoredOffsetsResponse.Stored, _Mapping]]] = ..., failures: _Optional[_Iterable[_Union[QueryStoredOffsetsResponse.Failure, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ResetOffsetsRequest(_message.Message):
    __slots__ = ("positions",)
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    def __init__(self, positions: _Optional[_Iterable[_Union[PartitionOffset, _Mapping]]] = ...) -> None: ...

class ResetOffsetsResponse(_message.Message):
    __slots__ = ("failures",)
    class Failure(_message.Message):
        __slots__ = ("partition", "error")
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        partition: Partition
        error: TubeError
        def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ..., error: _Optional[_Union[TubeError, _Mapping]] = ...) -> None: ...
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    failures: _containers.RepeatedCompositeFieldContainer[ResetOffsetsResponse.Failure]
    def __init__(self, failures: _Optional[_Iterable[_Union[ResetOffsetsResponse.Failure, _Mapping]]] = ...) -> None: ...

class ReadRangeRequest(_message.Message):
    __slots__ = ("partition", "start", "end", "own_store")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    OWN_STORE_FIELD_NUMBER: _ClassVar[int]
    partition: Partition
    start: int
    end: int
    own_store: bool
    def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., own_store: bool = ...) -> None: ...

class ReadRangeResponse(_message.Message):
    __slots__ = ("batch", "loss", "waiting")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    batch: RecordBatch
    loss: Loss
    waiting: Waiting
    def __init__(self, batch: _Optional[_Union[RecordBatch, _Mapping]] = ..., loss: _Optional[_Union[Loss, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecordBatch(_message.Message):
    __slots__ = ("start", "next", "dense", "bytes_behind", "count", "data", "borders", "has_attributes", "message_ids", "ordinals")
    START_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    BYTES_BEHIND_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    BORDERS_FIELD_NUMBER: _ClassVar[int]
    HAS_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    ORDINALS_FIELD_NUMBER: _ClassVar[int]
    start: int
    next: int
    dense: bool
    bytes_behind: int
    count: int
    data: bytes
    borders: bytes
    has_attributes: bytes
    message_ids: bytes
    ordinals: bytes
    def __init__(self, start: _Optional[int] = ..., next: _Optional[int] = ..., dense: bool = ..., bytes_behind: _Optional[int] = ..., count: _Optional[int] = ..., data: _Optional[bytes] = ..., borders: _Optional[bytes] = ..., has_attributes: _Optional[bytes] = ..., message_ids: _Optional[bytes] = ..., ordinals: _Optional[bytes] = ...) -> None: ...

class Loss(_message.Message):
    __slots__ = ("kind", "start", "end", "rows")
    KIND_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    start: int
    end: int
    rows: int
    def __init__(self, kind: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...

class Attribute(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class MessageHeader(_message.Message):
    __slots__ = ("has_attributes", "attributes", "message_type", "message_time", "foreign")
    HAS_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TIME_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_FIELD_NUMBER: _ClassVar[int]
    has_attributes: bool
    attributes: _containers.RepeatedCompositeFieldContainer[Attribute]
    message_type: str
    message_time: str
    foreign: bool
    def __init__(self, has_attributes: bool = ..., attributes: _Optional[_Iterable[_Union[Attribute, _Mapping]]] = ..., message_type: _Optional[str] = ..., message_time: _Optional[str] = ..., foreign: bool = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("broker_id", "partition_id")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    partition_id: int
    def __init__(self, broker_id: _Optional[int] = ..., partition_id: _Optional[int] = ...) -> None: ...

class BytesColumn(_message.Message):
    __slots__ = ("data", "borders", "nulls")
    DATA_FIELD_NUMBER: _ClassVar[int]
    BORDERS_FIELD_NUMBER: _ClassVar[int]
    NULLS_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    borders: bytes
    nulls: bytes
    def __init__(self, data: _Optional[bytes] = ..., borders: _Optional[bytes] = ..., nulls: _Optional[bytes] = ...) -> None: ...

class MessageBatch(_message.Message):
    __slots__ = ("topics", "topic_codes", "values", "headers", "header_codes", "keys", "places", "place_codes", "first_row", "uids")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_CODES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    HEADER_CODES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    PLACE_CODES_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    UIDS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    topic_codes: bytes
    values: BytesColumn
    headers: _containers.RepeatedCompositeFieldContainer[MessageHeader]
    header_codes: bytes
    keys: BytesColumn
    places: _containers.RepeatedCompositeFieldContainer[Place]
    place_codes: bytes
    first_row: int
    uids: BytesColumn
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., topic_codes: _Optional[bytes] = ..., values: _Optional[_Union[BytesColumn, _Mapping]] = ..., headers: _Optional[_Iterable[_Union[MessageHeader, _Mapping]]] = ..., header_codes: _Optional[bytes] = ..., keys: _Optional[_Union[BytesColumn, _Mapping]] = ..., places: _Optional[_Iterable[_Union[Place, _Mapping]]] = ..., place_codes: _Optional[bytes] = ..., first_row: _Optional[int] = ..., uids: _Optional[_Union[BytesColumn, _Mapping]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("partition", "count", "first_offset", "last_offset", "retried", "unanswered", "bytes", "checksum")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    partition: Partition
    count: int
    first_offset: int
    last_offset: int
    retried: int
    unanswered: int
    bytes: int
    checksum: int
    def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ..., count: _Optional[int] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., retried: _Optional[int] = ..., unanswered: _Optional[int] = ..., bytes: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class PublishStreamRequest(_message.Message):
    __slots__ = ("begin", "batch", "part", "number")
    class Begin(_message.Message):
        __slots__ = ("name", "per_message")
        NAME_FIELD_NUMBER: _ClassVar[int]
        PER_MESSAGE_FIELD_NUMBER: _ClassVar[int]
        name: str
        per_message: bool
        def __init__(self, name: _Optional[str] = ..., per_message: bool = ...) -> None: ...
    class Part(_message.Message):
        __slots__ = ("data", "size")
        DATA_FIELD_NUMBER: _ClassVar[int]
        SIZE_FIELD_NUMBER: _ClassVar[int]
        data: bytes
        size: int
        def __init__(self, data: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    begin: PublishStreamRequest.Begin
    batch: MessageBatch
    part: PublishStreamRequest.Part
    number: int
    def __init__(self, begin: _Optional[_Union[PublishStreamRequest.Begin, _Mapping]] = ..., batch: _Optional[_Union[MessageBatch, _Mapping]] = ..., part: _Optional[_Union[PublishStreamRequest.Part, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class PublishStreamResponse(_message.Message):
    __slots__ = ("number", "receipts", "failures", "outcomes", "draining")
    class Failure(_message.Message):
        __slots__ = ("error", "rows")
        ERROR_FIELD_NUMBER: _ClassVar[int]
        ROWS_FIELD_NUMBER: _ClassVar[int]
        error: TubeError
        rows: bytes
        def __init__(self, error: _Optional[_Union[TubeError, _Mapping]] = ..., rows: _Optional[bytes] = ...) -> None: ...
    class Outcomes(_message.Message):
        __slots__ = ("partitions", "partition_codes", "offsets", "message_ids", "append_times_ms", "attempts", "unanswered")
        PARTITIONS_FIELD_NUMBER: _ClassVar[int]
        PARTITION_CODES_FIELD_NUMBER: _ClassVar[int]
        OFFSETS_FIELD_NUMBER: _ClassVar[int]
        MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
        APPEND_TIMES_MS_FIELD_NUMBER: _ClassVar[int]
        ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
        UNANSWERED_FIELD_NUMBER: _ClassVar[int]
        partitions: _containers.RepeatedCompositeFieldContainer[Partition]
        partition_codes: bytes
        offsets: bytes
        message_ids: bytes
        append_times_ms: bytes
        attempts: bytes
        unanswered: bytes
        def __init__(self, partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., partition_codes: _Optional[bytes] = ..., offsets: _Optional[bytes] = ..., message_ids: _Optional[bytes] = ..., append_times_ms: _Optional[bytes] = ..., attempts: _Optional[bytes] = ..., unanswered: _Optional[bytes] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    number: int
    receipts: _containers.RepeatedCompositeFieldContainer[Receipt]
    failures: _containers.RepeatedCompositeFieldContainer[PublishStreamResponse.Failure]
    outcomes: PublishStreamResponse.Outcomes
    draining: bool
    def __init__(self, number: _Optional[int] = ..., receipts: _Optional[_Iterable[_Union[Receipt, _Mapping]]] = ..., failures: _Optional[_Iterable[_Union[PublishStreamResponse.Failure, _Mapping]]] = ..., outcomes: _Optional[_Union[PublishStreamResponse.Outcomes, _Mapping]] = ..., draining: bool = ...) -> None: ...

class TopicFilter(_message.Message):
    __slots__ = ("topic", "message_types")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    message_types: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., message_types: _Optional[_Iterable[str]] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("topics", "filters", "start", "accept_losses")
    class BoundStart(_message.Message):
        __slots__ = ("session_key", "source_count", "offsets", "smallest")
        SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
        SOURCE_COUNT_FIELD_NUMBER: _ClassVar[int]
        OFFSETS_FIELD_NUMBER: _ClassVar[int]
        SMALLEST_FIELD_NUMBER: _ClassVar[int]
        session_key: str
        source_count: int
        offsets: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
        smallest: bool
        def __init__(self, session_key: _Optional[str] = ..., source_count: _Optional[int] = ..., offsets: _Optional[_Iterable[_Union[PartitionOffset, _Mapping]]] = ..., smallest: bool = ...) -> None: ...
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LOSSES_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    filters: _containers.RepeatedCompositeFieldContainer[TopicFilter]
    start: SubscribeRequest.BoundStart
    accept_losses: bool
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., filters: _Optional[_Iterable[_Union[TopicFilter, _Mapping]]] = ..., start: _Optional[_Union[SubscribeRequest.BoundStart, _Mapping]] = ..., accept_losses: bool = ...) -> None: ...

class SubscribeResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionOffset, _Mapping]]] = ...) -> None: ...

class AttachPartitionsRequest(_message.Message):
    __slots__ = ("topics", "partitions", "accept_losses", "filters", "node")
    class Node(_message.Message):
        __slots__ = ("source_count", "node_id")
        SOURCE_COUNT_FIELD_NUMBER: _ClassVar[int]
        NODE_ID_FIELD_NUMBER: _ClassVar[int]
        source_count: int
        node_id: int
        def __init__(self, source_count: _Optional[int] = ..., node_id: _Optional[int] = ...) -> None: ...
    class Wanted(_message.Message):
        __slots__ = ("partition", "offset")
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        partition: Partition
        offset: int
        def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LOSSES_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    partitions: _containers.RepeatedCompositeFieldContainer[AttachPartitionsRequest.Wanted]
    accept_losses: bool
    filters: _containers.RepeatedCompositeFieldContainer[TopicFilter]
    node: AttachPartitionsRequest.Node
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., partitions: _Optional[_Iterable[_Union[AttachPartitionsRequest.Wanted, _Mapping]]] = ..., accept_losses: bool = ..., filters: _Optional[_Iterable[_Union[TopicFilter, _Mapping]]] = ..., node: _Optional[_Union[AttachPartitionsRequest.Node, _Mapping]] = ...) -> None: ...

class AttachPartitionsResponse(_message.Message):
    __slots__ = ("partitions",)
    class Attached(_message.Message):
        __slots__ = ("offset", "error")
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        offset: int
        error: TubeError
        def __init__(self, offset: _Optional[int] = ..., error: _Optional[_Union[TubeError, _Mapping]] = ...) -> None: ...
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[AttachPartitionsResponse.Attached]
    def __init__(self, partitions: _Optional[_Iterable[_Union[AttachPartitionsResponse.Attached, _Mapping]]] = ...) -> None: ...

class DetachPartitionsRequest(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ...) -> None: ...

class DetachPartitionsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("commit", "wait_ms", "paused")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    commit: _containers.RepeatedScalarFieldContainer[str]
    wait_ms: int
    paused: _containers.RepeatedCompositeFieldContainer[Partition]
    def __init__(self, commit: _Optional[_Iterable[str]] = ..., wait_ms: _Optional[int] = ..., paused: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("reason", "partition", "records", "latest", "batch", "draining", "lag", "slow")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[FetchResponse.Reason]
        REASON_READY: _ClassVar[FetchResponse.Reason]
        REASON_NOTHING_ATTACHED: _ClassVar[FetchResponse.Reason]
        REASON_AT_ENDS: _ClassVar[FetchResponse.Reason]
        REASON_UNCOMMITTED: _ClassVar[FetchResponse.Reason]
        REASON_PAUSED: _ClassVar[FetchResponse.Reason]
    REASON_UNSPECIFIED: FetchResponse.Reason
    REASON_READY: FetchResponse.Reason
    REASON_NOTHING_ATTACHED: FetchResponse.Reason
    REASON_AT_ENDS: FetchResponse.Reason
    REASON_UNCOMMITTED: FetchResponse.Reason
    REASON_PAUSED: FetchResponse.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    SLOW_FIELD_NUMBER: _ClassVar[int]
    reason: FetchResponse.Reason
    partition: Partition
    records: RecordBatch
    latest: int
    batch: str
    draining: bool
    lag: int
    slow: bool
    def __init__(self, reason: _Optional[_Union[FetchResponse.Reason, str]] = ..., partition: _Optional[_Union[Partition, _Mapping]] = ..., records: _Optional[_Union[RecordBatch, _Mapping]] = ..., latest: _Optional[int] = ..., batch: _Optional[str] = ..., draining: bool = ..., lag: _Optional[int] = ..., slow: bool = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("batch", "roll_back")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    ROLL_BACK_FIELD_NUMBER: _ClassVar[int]
    batch: str
    roll_back: bool
    def __init__(self, batch: _Optional[str] = ..., roll_back: bool = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("offset", "latest")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    offset: int
    latest: int
    def __init__(self, offset: _Optional[int] = ..., latest: _Optional[int] = ...) -> None: ...

class ConsumeRequest(_message.Message):
    __slots__ = ("begin", "credit", "commit", "seek", "pause", "resume")
    class Begin(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Seek(_message.Message):
        __slots__ = ("partition", "offset")
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        partition: Partition
        offset: int
        def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...
    class Pause(_message.Message):
        __slots__ = ("partitions",)
        PARTITIONS_FIELD_NUMBER: _ClassVar[int]
        partitions: _containers.RepeatedCompositeFieldContainer[Partition]
        def __init__(self, partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ...) -> None: ...
    class Resume(_message.Message):
        __slots__ = ("partitions",)
        PARTITIONS_FIELD_NUMBER: _ClassVar[int]
        partitions: _containers.RepeatedCompositeFieldContainer[Partition]
        def __init__(self, partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ...) -> None: ...
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    SEEK_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    begin: ConsumeRequest.Begin
    credit: int
    commit: CommitRequest
    seek: ConsumeRequest.Seek
    pause: ConsumeRequest.Pause
    resume: ConsumeRequest.Resume
    def __init__(self, begin: _Optional[_Union[ConsumeRequest.Begin, _Mapping]] = ..., credit: _Optional[int] = ..., commit: _Optional[_Union[CommitRequest, _Mapping]] = ..., seek: _Optional[_Union[ConsumeRequest.Seek, _Mapping]] = ..., pause: _Optional[_Union[ConsumeRequest.Pause, _Mapping]] = ..., resume: _Optional[_Union[ConsumeRequest.Resume, _Mapping]] = ...) -> None: ...

class ConsumeResponse(_message.Message):
    __slots__ = ("batch", "committed", "sought", "error", "waiting", "paused")
    class Committed(_message.Message):
        __slots__ = ("batch", "position", "error")
        BATCH_FIELD_NUMBER: _ClassVar[int]
        POSITION_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        batch: str
        position: CommitResponse
        error: TubeError
        def __init__(self, batch: _Optional[str] = ..., position: _Optional[_Union[CommitResponse, _Mapping]] = ..., error: _Optional[_Union[TubeError, _Mapping]] = ...) -> None: ...
    class Sought(_message.Message):
        __slots__ = ("partition", "offset", "error")
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        partition: Partition
        offset: int
        error: TubeError
        def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ..., offset: _Optional[int] = ..., error: _Optional[_Union[TubeError, _Mapping]] = ...) -> None: ...
    class Paused(_message.Message):
        __slots__ = ("partitions",)
        PARTITIONS_FIELD_NUMBER: _ClassVar[int]
        partitions: _containers.RepeatedCompositeFieldContainer[Partition]
        def __init__(self, partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ...) -> None: ...
    BATCH_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    SOUGHT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    batch: FetchResponse
    committed: ConsumeResponse.Committed
    sought: ConsumeResponse.Sought
    error: TubeError
    waiting: Waiting
    paused: ConsumeResponse.Paused
    def __init__(self, batch: _Optional[_Union[FetchResponse, _Mapping]] = ..., committed: _Optional[_Union[ConsumeResponse.Committed, _Mapping]] = ..., sought: _Optional[_Union[ConsumeResponse.Sought, _Mapping]] = ..., error: _Optional[_Union[TubeError, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ..., paused: _Optional[_Union[ConsumeResponse.Paused, _Mapping]] = ...) -> None: ...

class ListMembersRequest(_message.Message):
    __slots__ = ("group", "page_size", "page_token")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    group: str
    page_size: int
    page_token: str
    def __init__(self, group: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListMembersResponse(_message.Message):
    __slots__ = ("members", "topics", "next_page_token", "age_ms", "policy")
    class Held(_message.Message):
        __slots__ = ("topic", "partition_id", "broker")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
        BROKER_FIELD_NUMBER: _ClassVar[int]
        topic: str
        partition_id: int
        broker: str
        def __init__(self, topic: _Optional[str] = ..., partition_id: _Optional[int] = ..., broker: _Optional[str] = ...) -> None: ...
    class Member(_message.Message):
        __slots__ = ("client_id", "partitions")
        CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
        PARTITIONS_FIELD_NUMBER: _ClassVar[int]
        client_id: str
        partitions: _containers.RepeatedCompositeFieldContainer[ListMembersResponse.Held]
        def __init__(self, client_id: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[ListMembersResponse.Held, _Mapping]]] = ...) -> None: ...
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[ListMembersResponse.Member]
    topics: _containers.RepeatedScalarFieldContainer[str]
    next_page_token: str
    age_ms: int
    policy: GroupPolicy
    def __init__(self, members: _Optional[_Iterable[_Union[ListMembersResponse.Member, _Mapping]]] = ..., topics: _Optional[_Iterable[str]] = ..., next_page_token: _Optional[str] = ..., age_ms: _Optional[int] = ..., policy: _Optional[_Union[GroupPolicy, _Mapping]] = ...) -> None: ...

class GroupPolicy(_message.Message):
    __slots__ = ("topics", "flow_control", "flow_rules", "brokers_per_consumer", "changed")
    class OfTopic(_message.Message):
        __slots__ = ("topic", "consume", "reason", "filters")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        CONSUME_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        FILTERS_FIELD_NUMBER: _ClassVar[int]
        topic: str
        consume: bool
        reason: str
        filters: str
        def __init__(self, topic: _Optional[str] = ..., consume: bool = ..., reason: _Optional[str] = ..., filters: _Optional[str] = ...) -> None: ...
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    FLOW_CONTROL_FIELD_NUMBER: _ClassVar[int]
    FLOW_RULES_FIELD_NUMBER: _ClassVar[int]
    BROKERS_PER_CONSUMER_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[GroupPolicy.OfTopic]
    flow_control: bool
    flow_rules: str
    brokers_per_consumer: int
    changed: str
    def __init__(self, topics: _Optional[_Iterable[_Union[GroupPolicy.OfTopic, _Mapping]]] = ..., flow_control: bool = ..., flow_rules: _Optional[str] = ..., brokers_per_consumer: _Optional[int] = ..., changed: _Optional[str] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("topic", "page_size", "page_token")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    page_size: int
    page_token: str
    def __init__(self, topic: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups", "next_page_token", "age_ms")
    class Group(_message.Message):
        __slots__ = ("name", "topics", "members")
        NAME_FIELD_NUMBER: _ClassVar[int]
        TOPICS_FIELD_NUMBER: _ClassVar[int]
        MEMBERS_FIELD_NUMBER: _ClassVar[int]
        name: str
        topics: _containers.RepeatedScalarFieldContainer[str]
        members: int
        def __init__(self, name: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., members: _Optional[int] = ...) -> None: ...
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[ListGroupsResponse.Group]
    next_page_token: str
    age_ms: int
    def __init__(self, groups: _Optional[_Iterable[_Union[ListGroupsResponse.Group, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., age_ms: _Optional[int] = ...) -> None: ...

class DescribeGatewayRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeGatewayResponse(_message.Message):
    __slots__ = ("name", "advertised", "cluster", "version", "draining", "sessions", "open_reads", "open_publishes", "bytes_in_flight", "uptime_ms", "capabilities", "degraded")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADVERTISED_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    OPEN_READS_FIELD_NUMBER: _ClassVar[int]
    OPEN_PUBLISHES_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    name: str
    advertised: str
    cluster: str
    version: str
    draining: bool
    sessions: int
    open_reads: int
    open_publishes: int
    bytes_in_flight: int
    uptime_ms: int
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    degraded: bool
    def __init__(self, name: _Optional[str] = ..., advertised: _Optional[str] = ..., cluster: _Optional[str] = ..., version: _Optional[str] = ..., draining: bool = ..., sessions: _Optional[int] = ..., open_reads: _Optional[int] = ..., open_publishes: _Optional[int] = ..., bytes_in_flight: _Optional[int] = ..., uptime_ms: _Optional[int] = ..., capabilities: _Optional[_Iterable[str]] = ..., degraded: bool = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("sessions", "next_page_token")
    class Session(_message.Message):
        __slots__ = ("client_id", "group", "peer", "language", "version", "age_ms", "silent_ms", "calls")
        CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
        GROUP_FIELD_NUMBER: _ClassVar[int]
        PEER_FIELD_NUMBER: _ClassVar[int]
        LANGUAGE_FIELD_NUMBER: _ClassVar[int]
        VERSION_FIELD_NUMBER: _ClassVar[int]
        AGE_MS_FIELD_NUMBER: _ClassVar[int]
        SILENT_MS_FIELD_NUMBER: _ClassVar[int]
        CALLS_FIELD_NUMBER: _ClassVar[int]
        client_id: str
        group: str
        peer: str
        language: str
        version: str
        age_ms: int
        silent_ms: int
        calls: int
        def __init__(self, client_id: _Optional[str] = ..., group: _Optional[str] = ..., peer: _Optional[str] = ..., language: _Optional[str] = ..., version: _Optional[str] = ..., age_ms: _Optional[int] = ..., silent_ms: _Optional[int] = ..., calls: _Optional[int] = ...) -> None: ...
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[ListSessionsResponse.Session]
    next_page_token: str
    def __init__(self, sessions: _Optional[_Iterable[_Union[ListSessionsResponse.Session, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
