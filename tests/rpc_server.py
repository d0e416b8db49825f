"""A peer on a loopback socket that answers requests as a test's function says."""

import contextlib
import socket
import threading
from collections.abc import Callable

from google.protobuf.message import Message

from tubemq_spark.model import Endpoint
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import Status


class Exchange:
    """One request, and the ways to answer it."""

    def __init__(self, request: rpc.Request, connection: RpcConnection, accepted: socket.socket) -> None:
        self.request = request
        self._connection = connection
        self._accepted = accepted

    def parse(self, message_type):
        return rpc.parse_message(message_type, self.request.body)

    def answer(self, response: Message) -> None:
        self._connection.send_response(self.request, rpc.serialize_message(response))
        self._flush()

    def fail(self, exception: str, text: str, status: Status = Status.ERROR) -> None:
        self._connection.send_failure(self.request, status, f"org.apache.inlong.tubemq.{exception}", text)
        self._flush()

    def send_bytes(self, data: bytes) -> None:
        self._accepted.sendall(data)

    def hang_up(self) -> None:
        self._accepted.shutdown(socket.SHUT_RDWR)

    def _flush(self) -> None:
        self._accepted.sendall(self._connection.data_to_send())


Handler = Callable[[Exchange], None]


class RpcServer:
    """Calls ``handler`` for each request, in one thread a connection; a context manager."""

    def __init__(self, handler: Handler, port: int = 0) -> None:
        self._handler = handler
        self._listener = socket.create_server(("127.0.0.1", port))
        self.endpoint = Endpoint("127.0.0.1", self._listener.getsockname()[1])
        self.accepted: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="test-accept", daemon=True)]
        self._threads[0].start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def drop_connections(self) -> None:
        for accepted in self.accepted:
            with contextlib.suppress(OSError):
                accepted.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        self.drop_connections()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                # Without this a small answer behind another waits 40 ms for the client's TCP.
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.accepted.append(accepted)
                thread = threading.Thread(
                    target=self._serve, args=(accepted,), name="test-connection", daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _serve(self, accepted: socket.socket) -> None:
        connection = RpcConnection(Role.SERVER)
        with accepted, contextlib.suppress(OSError):
            while data := accepted.recv(1 << 16):
                for event in connection.receive_data(data):
                    self._handler(Exchange(event, connection, accepted))
