"""What the administration client says of answers that are not TubeMQ's."""

import contextlib
import http.server
import threading

import pytest

from tubemq_spark.client import TubeMQClient
from tubemq_spark.errors import TubeMQConnectionError


@contextlib.contextmanager
def web_server(answer):
    """Run a web server that gives every request the same answer; yield its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            """Stay silent."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


@pytest.mark.parametrize(
    ("answer", "said"),
    [(b"[]", "its answer is not a JSON object"), (b"<html>", "Expecting value"), (b"", "Expecting value")],
)
def test_what_is_not_an_answer_of_tubemq_is_no_answer(answer, said):
    with web_server(answer) as address, pytest.raises(TubeMQConnectionError, match=said):
        TubeMQClient.admin(address).call("admin_query_topic_info")
