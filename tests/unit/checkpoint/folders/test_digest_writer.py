"""Digests recorded beside checkpoints of every kind, and what they tell from then on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from ckpt_bytes import ckpt_bytes
from safetensors_writer import bfloat16_bits, safetensors_bytes, write_shards

from mindbatch.checkpoint.folders.digests import record_digests
from mindbatch.checkpoint.folders.tensor_set import open_source
from mindbatch.io.errors import CheckpointError, ConfigError
from verified_sources import open_verified

TENSORS: dict[str, npt.NDArray[Any]] = {
    "a.weight": np.arange(4, dtype=np.float32),
    "b.weight": bfloat16_bits([1, 2, 3]),
}


def flip(path: Path, bit: int) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)


@pytest.mark.parametrize("names", [["rank_0/a.ckpt", "rank_1/b.safetensors"], ["a.ckpt"]])
def test_digests_of_rank_folders_and_of_one_file(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        content = ckpt_bytes(TENSORS) if name.endswith(".ckpt") else safetensors_bytes(TENSORS)
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    written = [(tmp_path / name).parent / "digests.json" for name in names]
    assert record_digests(tmp_path) == written
    open_verified(tmp_path).close()
    for name in names:
        flip(tmp_path / name, (tmp_path / name).stat().st_size * 8 - 1)
    with pytest.raises(CheckpointError, match="is damaged") as refused:
        open_verified(tmp_path)
    assert [any(str(tmp_path / name) in line for line in refused.value.faults) for name in names] == [
        True for _ in names
    ]
    with pytest.raises(ConfigError, match="exists already; remove it, or give --replace") as kept:
        record_digests(tmp_path)
    assert len(kept.value.faults) == len(names)
    assert record_digests(tmp_path, replace=True) == written
    open_verified(tmp_path).close()


def test_digests_of_a_unified_folder(tmp_path: Path) -> None:
    home = write_shards(tmp_path / "m", {f"{name}.safetensors": {name: TENSORS[name]} for name in TENSORS})
    (home / "model.safetensors.index.json").rename(home / "param_name_map.json")
    assert record_digests(home) == [home / "digests.json"]
    flip(home / "a.weight.safetensors", (home / "a.weight.safetensors").stat().st_size * 8 - 1)
    with pytest.raises(CheckpointError, match=r"a.weight.safetensors: tensor 'a.weight' is damaged"):
        open_verified(home)


def test_no_digests_where_a_rank_is_damaged(tmp_path: Path) -> None:
    for rank, content in enumerate((ckpt_bytes(TENSORS), b"x", b"")):
        (tmp_path / f"rank_{rank}").mkdir()
        (tmp_path / f"rank_{rank}/m.ckpt").write_bytes(content)
    with pytest.raises(CheckpointError) as refused:
        record_digests(tmp_path)
    assert ["rank_1" in line or "rank_2" in line for line in refused.value.faults] == [True, True]
    assert not list(tmp_path.rglob("digests.json"))


def test_digests_of_a_file_that_is_not_here_are_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.ckpt").write_bytes(ckpt_bytes(TENSORS))
    record_digests(tmp_path)
    (tmp_path / "a.ckpt").rename(tmp_path / "b.ckpt")
    with pytest.raises(
        CheckpointError, match=r"digests.json: is of 'a.ckpt', which is not here; must be of 'b"
    ):
        open_source(tmp_path)
    (tmp_path / "a.ckpt").write_bytes(b"of no interest")
    open_source(tmp_path / "b.ckpt").close()
    content = json.loads((tmp_path / "digests.json").read_text())
    (tmp_path / "digests.json").write_text(json.dumps({**content, "files": {"\0": {}}}))
    with pytest.raises(CheckpointError, match="which is not here"):
        open_source(tmp_path / "b.ckpt")
