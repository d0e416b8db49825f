"""The administration API for coroutines: each call of ``MasterAdmin``, made by a thread."""

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.client.names.guesses import AnsweringType, answers_guesses
from tubemq_spark.net.loop import in_thread

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def _awaited(
    method: Callable[Concatenate[MasterAdmin, Arguments], Answer],
) -> Callable[Concatenate["AsyncMasterAdmin", Arguments], Coroutine[Any, Any, Answer]]:
    """Return a call that is awaited, with the name, the arguments and the errors of one that blocks."""

    @functools.wraps(method)
    async def call(self: "AsyncMasterAdmin", /, *args: Arguments.args, **named: Arguments.kwargs) -> Answer:
        self._check_open()
        return await in_thread(functools.partial(method, self._admin, *args, **named), "tubemq-admin")

    return call


@answers_guesses
class AsyncMasterAdmin(metaclass=AnsweringType):
    """Administers a cluster through the web address of its active master, as ``MasterAdmin`` does.

    Every call is awaited. One that is cancelled is carried out all the same.

        await client.admin(token="abc").add_topic("clicks", broker_ids=[1, 2])
    """

    def __init__(self, admin: MasterAdmin, check_open: Callable[[], object]) -> None:
        """Ask no server; ``AsyncTubeMQClient.admin`` makes one."""
        self._admin = admin
        self._check_open = check_open

    @property
    def url(self) -> str:
        """The one page that answers all calls."""
        return self._admin.url

    call = _awaited(MasterAdmin.call)
    ask = _awaited(MasterAdmin.ask)
    is_active = _awaited(MasterAdmin.is_active)
    group_nodes = _awaited(MasterAdmin.group_nodes)
    add_broker = _awaited(MasterAdmin.add_broker)
    online_broker = _awaited(MasterAdmin.online_broker)
    broker_run_status = _awaited(MasterAdmin.broker_run_status)
    broker_web_servers = _awaited(MasterAdmin.broker_web_servers)
    add_topic = _awaited(MasterAdmin.add_topic)
    modify_topic = _awaited(MasterAdmin.modify_topic)
    delete_topic = _awaited(MasterAdmin.delete_topic)
    remove_topic = _awaited(MasterAdmin.remove_topic)
    topic_info = _awaited(MasterAdmin.topic_info)
    topics = _awaited(MasterAdmin.topics)
    topic_brokers = _awaited(MasterAdmin.topic_brokers)
    accepts_publish = _awaited(MasterAdmin.accepts_publish)
    published_topics = _awaited(MasterAdmin.published_topics)
    consumer_group = _awaited(MasterAdmin.consumer_group)
    group_control = _awaited(MasterAdmin.group_control)
    consume_controls = _awaited(MasterAdmin.consume_controls)
    online_groups = _awaited(MasterAdmin.online_groups)
