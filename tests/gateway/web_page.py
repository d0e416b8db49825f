"""A server of one page over HTTP, such as a master's administration API or a list of masters."""

import http.server
import threading

from tests.waiting import wait_until
from tubemq_spark.model import Endpoint


class WebPage:
    """Answers with its text or an error; a context manager. If held, it answers as often as is released."""

    def __init__(self, status=200, *, held=False):
        self.text, self.status, self.asked = "", status, 0
        self.answers = threading.Semaphore(0) if held else None
        page = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                page.asked += 1
                if page.answers is not None:
                    page.answers.acquire(timeout=30)
                self.send_response(page.status)
                self.end_headers()
                self.wfile.write(page.text.encode())

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_):
                """Print nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.endpoint = Endpoint("127.0.0.1", self._server.server_address[1])
        self.url = f"http://{self.endpoint}/masters"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        if self.answers is not None:
            self.answers.release(1_000)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def await_more(self):
        """Wait until a whole question came that began after this."""
        enough = self.asked + 2
        wait_until(lambda: self.asked >= enough)
