"""Shared by the servers of tests on loopback: one function answers every request, and nothing is printed."""

from http.server import BaseHTTPRequestHandler


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
