"""What users see when they look at an object: ``dir``, and so the completion of names, shows what they call.

Each text is all that a class shows. A name that is added is public from then on, and needs a docstring.
"""

import inspect
import subprocess
import sys

import pytest

import tubemq_spark
import tubemq_spark.client
from tubemq_spark.client import BrokerAdmin, MasterAdmin, TubeMQClient, aio
from tubemq_spark.client.aio.producer import AsyncSendFuture

GROUP_CONSUMER = (
    "client_id close closed committed config confirm connected consume_status fetch is_filtered lag "
    "messages missed_heartbeats open pause paused positions resume run seek seek_to_beginning seek_to_end "
    "seek_to_time stop subscription wait_until_ready"
)
MASTER_ADMIN = (
    "accepts_publish add_broker add_topic ask broker_run_status broker_web_servers call consume_controls "
    "consumer_group delete_topic group_control group_nodes is_active modify_topic online_broker "
    "online_groups published_topics remove_topic topic_brokers topic_info topics url"
)
ASSIGNED_CONSUMER = f"{GROUP_CONSUMER} connect disconnect node partitions registered_at share status"

SURFACE = {
    "AssignedConsumer": ASSIGNED_CONSUMER,
    "AsyncAssignedConsumer": ASSIGNED_CONSUMER,
    "AsyncGroupConsumer": GROUP_CONSUMER,
    "AsyncMasterAdmin": MASTER_ADMIN,
    "AsyncProducer": ("client_id close flush publishable receipts send send_batch statistics unacknowledged"),
    "AsyncSendFuture": (
        "add_done_callback cancel cancelled done exception get_loop remove_done_callback result "
        "set_exception set_result"
    ),
    "AsyncTubeMQClient": (
        "admin assigned_consumer bounds close connect from_url group group_consumer lag layout node "
        "offsets offsets_at partitions producer publishable read read_range subscription topics"
    ),
    "Batch": "broker bytes_behind context lag latest offset partition records slow topic",
    "BoundStart": "select_big validate",
    "BrokerAdmin": (
        "ask booked_groups call committed_offsets group_offset group_places holders is_up knows_topic "
        "message_count pubinfo url whole_stores"
    ),
    "BrokerStatistics": (
        "answers broker_id endpoint exceptions latency received_bytes refused requests retries sent_bytes "
        "stored stored_bytes unanswered"
    ),
    "BuiltInPartitioner": "ROUND_ROBIN STICKY",
    "ClientConfig": (
        "checksums connect_timeout_ms consumer delivery_timeout_ms fetch_timeout_ms group "
        "heartbeat_period_ms keep_order lease_wait_ms linger_ms masters max_in_flight max_in_flight_bytes "
        "message_time_zone message_types partitioner password probe_groups reader_groups register_attempts "
        "register_retry_ms retry_ambiguous rpc_timeout_ms stamp_message_time tls username validate"
    ),
    "Confirmed": "context latest offset partition",
    "ConsumePosition": "ALWAYS_LATEST FIRST LATEST",
    "ConsumerConfig": (
        "confirm_locally confirm_timeout_ms consume_position layout_period_ms misses_before_pause "
        "not_found_wait_ms pause_after_misses_ms ready_wait_ms rebalance_wait_ms report_interval rollback "
        "shutdown_wait_ms validate"
    ),
    "CustomPartitioner": "choose",
    "GroupConsumer": GROUP_CONSUMER,
    "InLongMessage": "attributes index time_ms value",
    "Latency": "buckets count least_s mean_s most_s percentile_s total_s",
    "MasterAdmin": MASTER_ADMIN,
    "MessageHeader": "attributes count foreign index message_time message_type",
    "Node": "node_id source_count validate",
    "OffsetBounds": "count earliest index latest",
    "OpenClient": "client_id kind number",
    "PartitionStatus": "connected heard_at latest offset state subscribable trouble",
    "Producer": (
        "client_id close failures flush publishable receipts send send_batch statistics unacknowledged"
    ),
    "ProducerStatistics": (
        "answers brokers elapsed_s latency requests retries room_wait_s slowest stored stored_bytes"
    ),
    "Receipt": "bytes checksum count first_offset last_offset partition retried unanswered",
    "Record": (
        "attributes count flag index json message_id message_time message_type offset partition text "
        "timestamp topic value"
    ),
    "SendBatch": "first_row headers keys message of part partitions topics uids values",
    "SendFuture": (
        "add_done_callback cancel cancelled done exception result running set_exception set_result "
        "set_running_or_notify_cancel"
    ),
    "SendResult": (
        "append_time_ms attempts count index may_be_repeated message_id offset partition topic unanswered"
    ),
    "Subscription": "filtered_topics of start topics",
    "TlsConfig": "ca_file cert_file context key_file key_password min_version server_name validate",
    "TopicPartition": "broker_id count index local_id partition_id store_id topic",
    "TubeMQClient": (
        "admin assigned_consumer bounds close connect from_url group group_consumer lag layout node "
        "offsets offsets_at partitions producer publishable read read_arrow read_range subscription topics"
    ),
}


def public_names(thing):
    return [name for name in sorted(dir(thing)) if not name.startswith("_")]


def exported():
    """Return the classes that users get, by name."""
    things = {name: getattr(tubemq_spark.client, name) for name in tubemq_spark.client.__all__}
    things |= {name: getattr(aio, name) for name in aio.__all__} | {"AsyncSendFuture": AsyncSendFuture}
    return {name: thing for name, thing in things.items() if inspect.isclass(thing)}


@pytest.fixture(scope="module")
def instances():
    """Objects with attributes of their own, of which some say more than their classes."""
    client, other = (kind.connect("127.0.0.1:8715") for kind in (TubeMQClient, aio.AsyncTubeMQClient))
    address = "127.0.0.1:8080"
    examples = [client, other, MasterAdmin(address), BrokerAdmin(address), other.admin(address)]
    for either in (client, other):
        examples += [either.group_consumer("clicks"), either.assigned_consumer("clicks")]
    with client.producer() as producer:
        yield {type(thing).__name__: thing for thing in (*examples, producer)}


def test_every_exported_class_has_its_list():
    assert sorted(exported()) == sorted(SURFACE)
    assert list(SURFACE) == sorted(SURFACE)


@pytest.mark.parametrize("name", SURFACE)
def test_an_object_shows_what_users_call_and_nothing_else(name, instances):
    assert public_names(instances.get(name, exported()[name])) == sorted(SURFACE[name].split())


@pytest.mark.parametrize("name", SURFACE)
def test_a_class_shows_nothing_that_its_objects_do_not(name):
    assert set(public_names(exported()[name])) <= set(SURFACE[name].split())


def test_clients_can_be_imported_from_the_package():
    assert tubemq_spark.TubeMQClient is TubeMQClient
    assert tubemq_spark.AsyncTubeMQClient is aio.AsyncTubeMQClient
    assert {"TubeMQClient", "AsyncTubeMQClient", "__version__"} <= set(dir(tubemq_spark))
    with pytest.raises(AttributeError, match="module 'tubemq_spark' has no attribute 'Producer'"):
        tubemq_spark.Producer  # noqa: B018


def test_importing_the_package_loads_no_client():
    code = (
        "import sys, tubemq_spark; print([name for name in sys.modules if name.startswith('tubemq_spark.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['tubemq_spark.logs']"
