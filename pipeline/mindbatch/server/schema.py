"""Declares and checks the keys of `mindbatch serve`."""

import ipaddress
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mindbatch.config.error_log import shown
from mindbatch.config.machine import parse_bytes
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.config.paths import input_file_error, resolved, run_folder_error
from mindbatch.config.schema import SchemaKeys, option, private_option, section
from mindbatch.fields import kinds as kind
from mindbatch.io.installation import SERVER_PACKAGES, is_installed, missing
from mindbatch.run.batch_config import MESSAGE_FORMATS

_SHORTEST_KEY = 16


@dataclass
class ServerConfig:
    """Address, access and limits of the server."""

    host: str = option("127.0.0.1", "address to bind; one that other machines reach needs a key")
    port: int = option(8000, "port to bind; 0 takes a free one, which is printed", kind.count(0, 65535))
    api_key: str | None = option(
        None, "key that every request but /health must have; best written as ${oc.env:NAME}"
    )
    api_key_file: str | None = option(None, "file with an allowed key on each line", is_path=True)
    model_name: str | None = option(None, "name of the model in requests; null: the name of its folder")
    batches_dir: str | None = option(
        None,
        "folder of files and batches, which a restarted server resumes; null: none",
        is_path=True,
    )
    message_format: str = option(
        "auto",
        "how the model writes reasoning and tool calls; auto: read from its chat template",
        kind.choice(*MESSAGE_FORMATS),
    )
    max_body: str = option("64MiB", "largest body of a request, except files")
    max_file: str = option("512MiB", "largest file")
    max_files: int = option(10_000, "maximum number of files", kind.count(1))
    max_requests: int = option(256, "maximum of concurrent requests; others get status 429", kind.count(1))
    max_n: int = option(16, "maximum of choices in a request", kind.count(1))
    max_batches: int = option(4, "maximum of batches that run at a time; others wait", kind.count(1))
    request_seconds: int = option(3600, "maximum seconds of a request", kind.count(1))
    read_seconds: int = option(60, "maximum seconds between parts of a request", kind.count(1))
    drain_seconds: int = option(30, "seconds that requests have to finish when the server ends", kind.count())
    private: bool = private_option()
    keep_days: int | None = option(
        None, "days after which files and ended batches are removed; null: never", kind.count(1)
    )
    cors_origins: Any = option(
        (),
        "origins whose pages may call the server from a browser",
        kind.texts("origins", "[https://example.org]"),
    )
    ssl_certfile: str | None = option(None, "certificate for TLS", is_path=True)
    ssl_keyfile: str | None = option(None, "its private key", is_path=True)

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def has_key(self) -> bool:
        return self.api_key is not None or self.api_key_file is not None

    def read_keys(self) -> list[bytes]:
        """Returns the allowed keys."""
        lines = [] if self.api_key is None else [self.api_key]
        if self.api_key_file is not None:
            lines += Path(self.api_key_file).read_text(encoding="utf-8").split("\n")
        return [line.strip().encode() for line in lines if line.strip()]


@dataclass
class ServeConfig(ModelTaskConfig):
    """The keys of `mindbatch serve`; `decoding` has the defaults of requests."""

    records_seed: ClassVar[bool] = True

    server: ServerConfig = section(ServerConfig)

    @property
    def is_private(self) -> bool:
        return self.server.private

    @property
    def name(self) -> str:
        return self.server.model_name or Path(self.model.checkpoint_name_or_path or "").name

    def resolve_paths(self) -> list[str]:
        errors, server = super().resolve_paths(), self.server
        server.batches_dir = resolved("server.batches_dir", server.batches_dir, run_folder_error, errors)
        for name, holds in (
            ("api_key_file", "a key on each line"),
            ("ssl_certfile", "a certificate"),
            ("ssl_keyfile", "a private key"),
        ):
            error_of = input_file_error(holds)
            setattr(server, name, resolved(f"server.{name}", getattr(server, name), error_of, errors))
        return errors

    def run_errors(self, keys: SchemaKeys) -> Iterable[str]:
        yield from super().run_errors(keys)
        yield from _server_errors(self.server)

    def package_errors(self) -> Iterable[str]:
        yield from super().package_errors()
        lacking = next((name for name in SERVER_PACKAGES if not is_installed(name)), None)
        if lacking is not None:  # one command brings all of them
            yield f"mindbatch serve: {missing(lacking)}"


def _server_errors(server: ServerConfig) -> Iterator[str]:
    for name in ("max_body", "max_file"):
        try:
            parse_bytes(getattr(server, name))
        except ValueError as error:
            yield f"server.{name}={shown(getattr(server, name))}: {error}"
    if (server.ssl_certfile is None) != (server.ssl_keyfile is None):
        yield "server.ssl_certfile, server.ssl_keyfile: TLS needs both; set both or neither"
    elif server.ssl_certfile is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                server.ssl_certfile, server.ssl_keyfile
            )
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "reason", None) or error
            yield f"server.ssl_certfile, server.ssl_keyfile: not a certificate and its key ({reason})"
    yield from _key_errors(server)


def _key_errors(server: ServerConfig) -> Iterator[str]:
    """Yields errors of the API keys, without their values."""
    if not server.has_key:
        if not server.is_local:
            yield (
                f"server.host={shown(server.host)}: other machines can reach it; needs server.api_key or "
                "server.api_key_file, or server.host=127.0.0.1"
            )
        return
    try:
        keys = server.read_keys()
    except (OSError, UnicodeDecodeError):
        yield f"server.api_key_file={server.api_key_file}: cannot be read as text with a key on each line"
        return
    if not keys:
        yield "server.api_key, server.api_key_file: have no key"
    if any(len(key) < _SHORTEST_KEY for key in keys):
        yield f"server.api_key, server.api_key_file: a key must have at least {_SHORTEST_KEY} characters"
