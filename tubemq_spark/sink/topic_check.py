"""What the driver asks before a write begins, so that tasks need not find it out one by one."""

from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.options import WriteOptions


def check_topics(options: WriteOptions, *, patient: bool) -> None:
    """Refuse topics of options that do not exist, or wait until they can be published to, if ``patient``.

    The topics of a column are looked at by the tasks.
    """
    cluster = open_cluster(options.cluster)
    for topic in (options.topic, options.dead_letter_topic):
        if topic is not None and patient:
            cluster.await_publishable(topic)
        elif topic is not None:
            cluster.refuse_unknown_topic(topic)
