"""Uploads finished results to an address, whole and checked; whether it can be is checked before a run."""

from collections.abc import Callable, Collection, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mindbatch.io.amounts import counted, size
from mindbatch.io.errors import ConfigError
from mindbatch.io.screen_text import say
from mindbatch.remote.address import DataAddress
from mindbatch.remote.sources import endpoint

_CHECK_SECONDS = 120.0
_MAIN = "main"


def check_destination(key: str, address: DataAddress, names: Collection[str], *, is_own: bool) -> None:
    """Checks that files of these names can be uploaded.

    key: of the option with the address. is_own: earlier files there are this run's, and may be replaced.

    Raises:
        ConfigError: there is a file of one of the names, no such dataset or bucket, or no permission.
        MindBatchError: the server cannot be reached.
    """
    existing = _answer(key, address, "check", names=[*names], seconds=_CHECK_SECONDS)["existing"]
    if existing and not is_own:
        raise ConfigError(f"{key}={address.text}: already has {existing[0]}; give another folder")


def upload(
    key: str, address: DataAddress, files: Mapping[str, Path], removed: Collection[str]
) -> dict[str, Any]:
    """Uploads files, and compares size and digest of what is there then; returns what is there.

    files: by their names there. removed: names of this run's files there that are replaced by others.

    Raises:
        ConfigError, MindBatchError: it could not be uploaded, or is not what was sent.
    """
    amount = f"{counted(len(files), 'file')}, {size(sum(path.stat().st_size for path in files.values()))}"
    say(f"uploading to {address.text}: {amount}")
    paths = {name: str(path) for name, path in files.items()}
    uploaded = _answer(key, address, "upload", files=paths, removed=[*removed])
    return uploaded if address.is_hub else {"endpoint": endpoint(address.scheme), **uploaded}


def _answer(key: str, address: DataAddress, request: str, **fields: Any) -> dict[str, Any]:
    """Sends a request to a child process for the address; returns its answer."""
    from mindbatch.hub.network_child import NetworkChild
    from mindbatch.remote import hub_worker, object_worker  # few runs upload

    worker = hub_worker if address.is_hub else object_worker
    functions: dict[str, Callable[[Connection, str], object]] = {
        "check": worker.check,
        "upload": worker.upload,
    }
    folder = f"{address.path.rstrip('/')}/" if address.path else ""
    where = (
        {"name": address.container, "revision": address.revision or _MAIN}
        if address.is_hub
        else {"scheme": address.scheme, "bucket": address.container}
    )
    wanted = {**where, "folder": folder, **fields}
    with NetworkChild(functions[request], wanted, f"{key}={address.text}") as child:
        return child.message()
