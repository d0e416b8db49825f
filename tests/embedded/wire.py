"""A small TubeMQ client that sends exactly what a test wants."""

import socket

from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import Method, OpType, ServiceType
from tubemq_spark.protocol.messages import MESSAGES
from tubemq_spark.protocol.pb import broker_pb2

TIMEOUT_S = 10


def connect(address):
    host, _, port = address.rpartition(":")
    connected = socket.create_connection((host, int(port)), TIMEOUT_S)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def is_closed(connected):
    """Read to the end; a connection that the peer resets has ended too."""
    try:
        while connected.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


class Wire:
    """One connection; requests are sent one by one or together, and answered in order."""

    def __init__(self, address):
        self.socket = connect(address)
        self.connection = RpcConnection(Role.CLIENT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def exchange(self, *requests):
        """Send requests (service, method, body) together and return the answers in the same order."""
        numbers = [self.connection.send_request(*request, 10_000) for request in requests]
        self.socket.sendall(self.connection.data_to_send())
        answers = {}
        while len(answers) < len(numbers):
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the server closed the connection")
            answers.update((event.serial_no, event) for event in self.connection.receive_data(data))
        return [answers[number] for number in numbers]

    def call(self, service, method, **fields):
        """Send a request with these fields, of which None is not set; return its answer."""
        stated = {name: value for name, value in fields.items() if value is not None}
        request = MESSAGES[method].request(**stated)
        (answer,) = self.exchange((service, method, request.SerializeToString()))
        assert isinstance(answer, rpc.Response), answer
        assert answer.method == method
        message = rpc.parse_message(MESSAGES[method].response, answer.body)
        succeeded = message.errCode == 200
        assert getattr(message, "success", succeeded) is succeeded, message  # some have no such field
        return message


def send_request(data, topic="demo", partition_id=0, *, client="producer-1", **fields):
    """Return a message to send, as a request to ``Wire.exchange``."""
    fields = {"flag": 0, "checkSum": -1, "sentAddr": 0, **fields}
    message = broker_pb2.SendMessageRequestP2B(
        clientId=client, topicName=topic, partitionId=partition_id, data=data, **fields
    )
    return ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, message.SerializeToString()


def fetch_request(partition_id=0, *, group="group", client="consumer-1", topic="demo", **fields):
    """Return a fetch, as a request to ``Wire.exchange``."""
    message = broker_pb2.GetMessageRequestC2B(
        **{"clientId": client, "partitionId": partition_id, "groupName": group, "topicName": topic, **fields}
    )
    return ServiceType.BROKER_READ, Method.GET_MESSAGE, message.SerializeToString()


def send_answer(answer):
    return rpc.parse_message(broker_pb2.SendMessageResponseB2P, answer.body)


class BrokerClient(Wire):
    """The broker's methods, with the usual values filled in."""

    def __init__(self, address, group="group", client="consumer-1", topic="demo"):
        super().__init__(address)
        self.group, self.client, self.topic = group, client, topic

    def send(self, *payloads, **fields):
        """Send messages together and return their answers, which must be successes."""
        answers = [
            send_answer(answer)
            for answer in self.exchange(*(send_request(data, **fields) for data in payloads))
        ]
        assert all(answer.success for answer in answers), answers
        return answers

    def try_send(self, data=b"x", **fields):
        return send_answer(self.exchange(send_request(data, **fields))[0])

    def _read(self, method, **fields):
        usual = {"clientId": self.client, "groupName": self.group}
        return self.call(ServiceType.BROKER_READ, method, **{**usual, **fields})

    def register(self, partition_id=0, *, status=0, op=OpType.REGISTER, **fields):
        usual = {"opType": op, "topicName": self.topic, "partitionId": partition_id, "readStatus": status}
        return self._read(Method.PARTITION_REGISTER, **{**usual, **fields})

    def unregister(self, partition_id=0, *, status=0, **fields):
        return self.register(partition_id, status=status, op=OpType.UNREGISTER, **fields)

    def fetch(self, partition_id=0, **fields):
        usual = {"topicName": self.topic, "partitionId": partition_id}
        return self._read(Method.GET_MESSAGE, **{**usual, **fields})

    def commit(self, partition_id=0, **fields):
        usual = {"topicName": self.topic, "partitionId": partition_id}
        return self._read(Method.COMMIT_OFFSET, **{**usual, **fields})

    def heartbeat(self, *partitions, **fields):
        return self._read(Method.PARTITION_HEARTBEAT, readStatus=0, partitionInfo=partitions, **fields)

    def drain(self, partition_id=0):
        """Fetch and commit until the end; return the payloads."""
        payloads = []
        while (answer := self.fetch(partition_id, lastPackConsumed=True)).success:
            payloads += [message.payLoadData for message in answer.messages]
        assert answer.errCode == 404, answer
        return payloads


class MasterClient(Wire):
    """The master's methods, with the usual values filled in."""

    def _ask(self, method, client, **fields):
        return self.call(ServiceType.MASTER, method, clientId=client, **fields)

    def register_producer(self, client="producer-1", topics=(), checksum=-1, host="127.0.0.1", **fields):
        usual = {"topicList": topics, "brokerCheckSum": checksum, "hostName": host}
        return self._ask(Method.PRODUCER_REGISTER, client, **usual, **fields)

    def producer_heartbeat(self, client="producer-1", topics=(), checksum=-1, host="127.0.0.1", **fields):
        usual = {"topicList": topics, "brokerCheckSum": checksum, "hostName": host}
        return self._ask(Method.PRODUCER_HEARTBEAT, client, **usual, **fields)

    def close_producer(self, client="producer-1"):
        return self._ask(Method.PRODUCER_CLOSE, client)

    def register_consumer(
        self, client="consumer-1", group="group", topics=("demo",), source_count=-2, node_id=-2, **fields
    ):
        usual = {"groupName": group, "hostName": "127.0.0.1", "topicList": topics}
        counts = {"sourceCount": source_count, "nodeId": node_id}
        return self._ask(Method.BALANCE_REGISTER, client, **{**usual, **counts, **fields})

    def consumer_heartbeat(self, client="consumer-1", group="group", **report):
        stated = {"brokerConfigId": -2, "topicMetaInfoId": -2, **report} if report else None
        return self._ask(Method.BALANCE_HEARTBEAT, client, groupName=group, subRepInfo=stated)

    def layout(self, client="consumer-1", group="group", brokers=-2, layout=-2):
        known = {"brokerConfigId": brokers, "topicMetaInfoId": layout}
        return self._ask(Method.BALANCE_PARTITION_META, client, groupName=group, **known)

    def close_consumer(self, client="consumer-1", group="group"):
        return self._ask(Method.CONSUMER_CLOSE, client, groupName=group)

    def join_group(self, client="consumer-1", group="group", topics=("demo",), held=(), **fields):
        """Register a consumer that the master balances."""
        usual = {"groupName": group, "hostName": "127.0.0.1", "topicList": topics, "subscribeInfo": held}
        return self._ask(Method.CONSUMER_REGISTER, client, **{**usual, **fields})

    def group_heartbeat(self, client="consumer-1", group="group", held=None, answered=None, **fields):
        """Report what a consumer holds (None: no report) and which event it has finished."""
        if answered is not None:
            answered.status = 2
        report = {"subscribeInfo": held or (), "reportSubscribeInfo": held is not None, "event": answered}
        return self._ask(Method.CONSUMER_HEARTBEAT, client, groupName=group, **report, **fields)
