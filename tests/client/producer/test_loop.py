"""Which messages a producer's thread takes together."""

import numpy as np

from tests.cases import in_one_test
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.producer.gathered import checked_message
from tubemq_spark.client.producer.loop import SendLoop
from tubemq_spark.client.producer.runs import BrokerLink, Destination
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.pipeline import Pipelines
from tubemq_spark.protocol.send_frames import encode_place

BROKER = BrokerLink(1, Endpoint("b", 1), 10_000)
DESTINATION = Destination(TopicPartition("demo", 1, 0), BROKER, encode_place("client", "demo", 0))


class Window:
    """Stores all messages at once, and remembers how many came together."""

    error = None
    full = frozenset()

    def __init__(self):
        self.together = []
        self.pipelines = Pipelines(1_000)
        self.close = self.pipelines.close

    def wait(self, at_most_s):
        self.pipelines.drive(at_most_s)

    def break_off(self, error):
        """Do nothing: no message is left that could fail."""

    def room(self, ends, first=0):
        return len(ends) - 1 - first

    def submit(self, runs):
        for run in runs:
            self.together.append(len(run.rows))
            run.tell_stored(range(len(run.rows)), np.arange(len(run.rows)), None)


@in_one_test(
    ("waiting", "together"), [(1, [1]), (64, [64]), (127, [127]), (128, [128]), (300, [128, 128, 44])]
)
def test_messages_that_wait_are_taken_as_many_at_a_time_as_become_one_run(waiting, together):
    window = Window()
    loop = SendLoop(ClientConfig((Endpoint("b", 1),), "group"))
    loop.own("producer", window, window.pipelines.add_waker, lambda _: None)
    with loop._lock:  # the thread takes none before all wait
        for _ in range(waiting):
            message = checked_message("demo", b"x")
            message.destination = DESTINATION
            loop.put(message, block=True)
    loop.flush()
    loop.close()
    assert window.together == together
