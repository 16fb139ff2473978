"""Servers of tests on loopback: one function answers every request, and nothing is printed."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

from mindbatch.io.closing import Closing, Own


class QuietHandler(BaseHTTPRequestHandler):
    """Keeps connections open; `answer` gets every request."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *values: object) -> None:
        """Prints nothing."""

    def answer(self) -> None:
        raise NotImplementedError

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def do_DELETE(self) -> None:
        self.answer()


class LoopbackServer(Closing):
    """Serves while a `with` block lasts. `served` of its handlers is the server. address: with its port."""

    handler: ClassVar[type[QuietHandler]]

    def __enter__(self: Own) -> Own:
        assert isinstance(self, LoopbackServer)
        handler = type("Handler", (self.handler,), {"served": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
