"""The memory that ranks of a host meet in is handed to processes of the same user, and to nobody else."""

import os
import secrets
from concurrent.futures import ThreadPoolExecutor

import pytest

from mindbatch.errors import MindBatchError
from mindbatch.parallel import shared_file as shared_files
from mindbatch.parallel.shared_file import shared_file
from mindbatch.parallel.topology import TensorSlice


def both(name: str) -> list[int | MindBatchError]:
    """What two ranks of a meeting get."""

    def take_part(rank: int) -> int | MindBatchError:
        try:
            return shared_file(name, TensorSlice(rank, 2), 64)
        except MindBatchError as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        return [*threads.map(take_part, range(2))]


def test_two_ranks_have_the_same_memory() -> None:
    first, second = both(secrets.token_hex(8))
    assert isinstance(first, int)
    assert isinstance(second, int)
    assert os.pwrite(first, b"abc", 5) == 3
    assert os.pread(second, 4, 4) == b"\0abc"
    os.close(first)
    os.close(second)


def test_another_user_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_files, "SECONDS", 0.3)
    monkeypatch.setattr(shared_files.os, "getuid", lambda: 12345)
    assert all(isinstance(each, MindBatchError) for each in both(secrets.token_hex(8)))
