"""Sources of every kind: folders, files, rank folders, their digests, and what is refused."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from ckpt_bytes import ckpt_bytes, text_value, with_crc
from safetensors_writer import bfloat16_bits, safetensors_bytes

from mindbatch.checkpoint.folders.digests import digests_of
from mindbatch.checkpoint.folders.tensor_set import Source, open_source
from mindbatch.io.errors import CheckpointError, ConfigError
from verified_sources import open_verified

TENSORS: dict[str, npt.NDArray[Any]] = {
    "a.weight": np.arange(4, dtype=np.float32),
    "b.weight": bfloat16_bits([1, 2, 3]),
}


def names_of(source: Source) -> list[list[str]]:
    return [list(tensors.tensors) for tensors in source.ranks]


def write_rank(folder: Path, rank: int, *files: str) -> None:
    (folder / f"rank_{rank}").mkdir(parents=True)
    for index, file in enumerate(files):
        tensors = {f"t{index}": np.full(2, rank, np.float32)}
        data = ckpt_bytes(tensors) if file.endswith(".ckpt") else safetensors_bytes(tensors)
        (folder / f"rank_{rank}" / file).write_bytes(data)


def add_digests(folder: Path) -> None:
    """digests.json for the one file of a folder."""
    with open_source(folder) as source:
        (folder / "digests.json").write_bytes(digests_of(source.ranks[0].files).as_json())


def flip(path: Path, position: int) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[position] ^= 1
    path.write_bytes(damaged)


def refusal(path: Path, opened: Callable[[Path], Source] = open_source) -> str:
    with pytest.raises(CheckpointError) as caught:
        opened(path)
    return str(caught.value)


def test_gaps_and_doubles_of_ranks_are_refused(tmp_path: Path) -> None:
    for rank in (0, 2, 5):
        write_rank(tmp_path, rank, "w.ckpt")
    (tmp_path / "rank_02").mkdir()
    message = refusal(tmp_path)
    assert "ranks are missing: 1, 3, 4; there must be rank_0 to rank_5" in message
    assert "rank_02 and rank_2 are one rank" in message


def test_the_newest_file_of_each_rank_is_taken(tmp_path: Path) -> None:
    for rank in range(2):
        prefix = f"llama_rank_{rank}"
        write_rank(tmp_path, rank, f"{prefix}-2_10.ckpt", f"{prefix}-10_2.ckpt", f"{prefix}-10_1.ckpt")
        (tmp_path / f"rank_{rank}" / "llama-graph.meta").write_text("x")
    with open_source(tmp_path) as source:
        assert names_of(source) == [["t1"], ["t1"]]


def test_ranks_of_different_steps_are_refused(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, "m-1_10.ckpt", "m-1_20.ckpt")
    write_rank(tmp_path, 1, "m-1_10.ckpt")
    assert "different steps: rank_0 epoch 1 step 20, rank_1 epoch 1 step 10; must be of one" in refusal(
        tmp_path
    )


@pytest.mark.parametrize(
    "files",
    [
        ("a.ckpt", "b.ckpt"), ("m-1_1.ckpt", "other-1_2.ckpt"), ("m-1_1.ckpt", "m-1_2.safetensors"),
        ("m-1_1.ckpt", "m.ckpt"), ("m-1_1.ckpt", "m-01_1.ckpt"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_told_apart_are_refused(tmp_path: Path, files: tuple[str, ...]) -> None:
    write_rank(tmp_path, 0, *files)
    message = refusal(tmp_path)
    assert "several checkpoint files" in message
    assert all(file in message for file in files)


def test_a_rank_without_a_checkpoint_is_refused_with_all_others(tmp_path: Path) -> None:
    for rank in range(3):
        write_rank(tmp_path, rank)
    assert len(refusal(tmp_path).splitlines()) == 3


@pytest.mark.parametrize(
    ("name", "in_a_folder", "alone"),
    [
        ("model.pkl", "safe_serialization=True", "safe_serialization=True"),
        ("model.bin", "or give a file of PyTorch itself", "not a file of torch.save"),
        ("model.pt", "or give a file of PyTorch itself", "not a file of torch.save"),
        ("rng_state.pth", "or give a file of PyTorch itself", "not a file of torch.save"),
        ("notes.txt", "no checkpoint", "must be a file of tensors, .safetensors, .ckpt or PyTorch's .bin"),
    ],
)
def test_other_files_are_refused_with_what_to_do(
    tmp_path: Path, name: str, in_a_folder: str, alone: str
) -> None:
    (tmp_path / name).write_bytes(b"cos\nsystem\n")
    assert in_a_folder in refusal(tmp_path)
    assert alone in refusal(tmp_path / name)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        open_source(tmp_path / "none")
    assert "no checkpoint; needed is a .safetensors or .ckpt file" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["w.ckpt", "w.safetensors"])
def test_every_changed_byte_is_refused_with_digests(tmp_path: Path, name: str) -> None:
    data = (
        ckpt_bytes(TENSORS, 6) + text_value("note", "ab") if name == "w.ckpt" else safetensors_bytes(TENSORS)
    )
    path = tmp_path / name
    path.write_bytes(data)
    add_digests(tmp_path)
    with open_source(path) as source:
        assert source.ranks[0].digests is not None
    for position in range(len(data)):
        flip(path, position)
        assert name in refusal(path, open_verified)
        flip(path, position)
    open_verified(path).close()


def test_check_reads_one_tensor(tmp_path: Path) -> None:
    path = tmp_path / "w.ckpt"
    path.write_bytes(ckpt_bytes(TENSORS))
    add_digests(tmp_path)
    flip(path, -1)
    with open_source(path) as source:
        source.ranks[0].verified("a.weight")
        with pytest.raises(CheckpointError, match="'b.weight' is damaged"):
            source.ranks[0].verified("b.weight")
        with pytest.raises(CheckpointError, match="no tensor 'a.wieght'; did you mean 'a.weight'"):
            source.ranks[0].verified("a.wieght")


def test_the_own_checksum_of_a_ckpt_is_verified(tmp_path: Path) -> None:
    path = tmp_path / "w.ckpt"
    path.write_bytes(with_crc(ckpt_bytes(TENSORS)))
    open_verified(path).close()
    flip(path, len(ckpt_bytes(TENSORS)) - 1)
    open_source(path).close()
    assert "w.ckpt: damaged: its CRC-32 is" in refusal(path, open_verified)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    for rank in range(3):
        write_rank(tmp_path, rank, "w.ckpt")
        add_digests(tmp_path / f"rank_{rank}")
    flip(tmp_path / "rank_2/w.ckpt", -1)
    before = len(os.listdir("/proc/self/fd"))
    refusal(tmp_path, open_verified)
    open_source(tmp_path).close()
    (tmp_path / "rank_2/w.ckpt").write_bytes(b"\x0a\x05")
    refusal(tmp_path)
    (tmp_path / "rank_2/w.ckpt").unlink()
    (tmp_path / "rank_2/w-1_1.ckpt").write_bytes(ckpt_bytes(TENSORS))
    refusal(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
