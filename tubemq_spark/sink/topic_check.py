"""What the driver asks before a write begins, so that tasks need not find it out one by one."""

from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.options import WriteOptions


def check_topic(options: WriteOptions) -> None:
    """Refuse topics of options that do not exist; the topics of a column are looked at by the tasks.

    Raises:
        ProduceError: the topic does not exist.
        TubeMQConnectionError: no master answered.
    """
    for topic in (options.topic, options.dead_letter_topic):
        if topic is not None:
            open_cluster(options.cluster).refuse_unknown_topic(topic)
