"""The parent's side of a child process that has a network: starts it, reads its messages, shows progress."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from mindbatch.io.children import Child
from mindbatch.io.closing import Closing
from mindbatch.io.errors import ConfigError, MindBatchError
from mindbatch.io.screen_text import hide, printable

_MIB = 1 << 20
_ENVIRONMENT = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_XET": "1",  # a library in Rust with a pool of its own; the hub takes and gives plain HTTP
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
_SECRETS = ("HF_TOKEN", "MODELSCOPE_API_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Variables whose values are in no message, whatever a library says."""


class NetworkChild(Closing):
    """A child process that answers one request, in JSON messages, within a `with` block.

    name: of what it fetches or uploads, the beginning of every error line.
    """

    def __init__(
        self, function: Callable[[Connection, str], object], request: Mapping[str, Any], name: str
    ) -> None:
        for variable in filter(os.environ.get, _SECRETS):
            hide(os.environ[variable], f"${variable}")
        environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
        self._name = name
        self._child = Child(
            function, json.dumps(request), env={**environment, **_ENVIRONMENT}, stderr=subprocess.DEVNULL
        )

    def close(self) -> None:
        self._child.end()

    def go_on(self) -> None:
        """Lets the child do what its first message has announced."""
        self._child.connection.send_bytes(b"go")

    def message(self) -> dict[str, Any]:
        """Returns the next message.

        Raises:
            ConfigError: it is an error that lasts.
            MindBatchError: it is another error, or the child has ended.
        """
        try:
            message: dict[str, Any] = json.loads(self._child.connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise MindBatchError(
                f"{self._name}: the process with the connection has ended ({self._child.death()})"
            ) from error
        if "error" in message:
            kind = ConfigError if message.get("lasts") else MindBatchError
            raise kind(f"{self._name}: {printable(message['error'])}")
        return message

    def followed(self, total: int, title: str = "fetching") -> dict[str, Any]:
        """Shows the number of bytes, out of `total`, until the child is done; returns its last message."""
        from rich.console import Console

        from mindbatch.io.moving_bar import MovingBar

        console = Console(stderr=True)
        with MovingBar(f"{title} {self._name}", console, disable=not console.is_terminal) as bar:
            while "bytes" in (message := self.message()):
                bar.set(min(message["bytes"], total) // _MIB, total // _MIB, "MiB")
        return message
