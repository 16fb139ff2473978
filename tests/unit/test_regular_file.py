"""Files that others have made: regular ones only, nothing is waited for, no more than a bound is read."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from mindbatch.io.regular_file import first_bytes, open_regular, read_regular


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


SPECIAL: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "socket": a_socket,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to a pipe": lambda path: (os.mkfifo(f"{path}.pipe"), path.symlink_to(f"{path}.pipe")),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_regular_file_is_refused_at_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's name must be short
    path = Path("x")
    SPECIAL[kind](path)
    for read in (open_regular, lambda path: first_bytes(path, 1), lambda path: read_regular(path, 10)):
        with pytest.raises(OSError, match="not a regular file"):
            read(path)


def test_a_file_that_becomes_a_pipe_after_it_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"x")
    looked_at = os.stat(tmp_path / "file")
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", lambda path: looked_at)
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(tmp_path / "pipe")


def test_a_folder_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        open_regular(tmp_path)


def test_reading_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    assert first_bytes(path, 3) == b"123"
    assert first_bytes(path, 1 << 50) == b"12345"
    with pytest.raises(OSError, match="5 bytes; at most 4 are allowed"):
        read_regular(path, 4)
    os.truncate(path, 1 << 40)
    with pytest.raises(OSError, match="at most 4"):
        read_regular(path, 4)
