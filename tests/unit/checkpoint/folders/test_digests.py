"""digests.json beside checkpoints of every kind: damage is named, and what does not fit is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from ckpt_bytes import ckpt_bytes
from safetensors_writer import bfloat16_bits, safetensors_bytes, write_folder, write_shards

from mindbatch.checkpoint.folders.digests import record_digests
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.folders.tensor_set import open_source
from mindbatch.io.errors import CheckpointError, ConfigError
from verified_sources import open_verified

TENSORS: dict[str, npt.NDArray[Any]] = {
    "a.weight": np.arange(4, dtype=np.float32),
    "b.weight": bfloat16_bits([1, 2, 3]),
}
ONES = np.ones(2, np.float32)
TOOL = Path(__file__).parents[4] / "tools" / "write_digests.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = write_folder(tmp_path / "model", TENSORS)
    record_digests(home)
    return home


def change_digests(folder: Path, **changes: object) -> None:
    content = json.loads((folder / "digests.json").read_text())
    (folder / "digests.json").write_text(json.dumps({**content, **changes}))


def flip(path: Path, bit: int) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[bit // 8] ^= 1 << bit % 8
    path.unlink()
    path.write_bytes(damaged)


def test_every_flipped_data_bit_is_refused_naming_tensor_and_file(folder: Path) -> None:
    path = folder / "model.safetensors"
    for name in TENSORS:
        info = ModelFolder(folder).info(name)
        [(start, nbytes)] = info.extents
        for bit in range(start * 8, (start + nbytes) * 8):
            flip(path, bit)
            model = ModelFolder(folder)
            with pytest.raises(CheckpointError, match=rf"model\.safetensors: tensor '{name}' is damaged"):
                model.floats(name)
            flip(path, bit)


def test_changed_metadata_is_refused_though_no_tensor_is(folder: Path) -> None:
    path = folder / "model.safetensors"
    header = path.read_bytes()[8:]
    text = b'{"__metadata__": {"format": "pt"}, ' + header[1:]
    end = text.index(b"}}") + 2
    path.write_bytes(end.to_bytes(8, "little") + text)
    record_digests(folder, replace=True)
    open_verified(folder).close()
    path.write_bytes(path.read_bytes().replace(b'"pt"', b'"qt"'))
    with pytest.raises(CheckpointError, match="model.safetensors: damaged: the SHA-256 of what is around"):
        ModelFolder(folder)


def test_digests_without_heads_are_enough(folder: Path) -> None:
    content = json.loads((folder / "digests.json").read_text())
    del content["heads"]
    (folder / "digests.json").write_text(json.dumps(content))
    open_verified(folder).close()


def test_entries_must_be_exactly_the_tensors(folder: Path) -> None:
    zero = "0" * 64
    change_digests(
        folder, files={"model.safetensors": {"a.weight": zero, "c": zero}, "x.safetensors": {"d": zero}}
    )
    with pytest.raises(CheckpointError) as caught:
        ModelFolder(folder)
    assert [fault.split("digests.json: ")[1] for fault in caught.value.lines] == [
        "no digest for tensor 'b.weight' of 'model.safetensors'",
        "tensor 'c' is not in 'model.safetensors'",
        "tensor 'd' is not in 'x.safetensors'",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "md5"},
        {"algorithm": None},
        {"files": None},
        {"files": []},
        {"files": {"model.safetensors": []}},
        {"files": {"model.safetensors": {"a.weight": 1}}},
        {"heads": {"model.safetensors": 1}},
        {"heeds": {}},
    ],
)
def test_malformed_digests_are_refused(folder: Path, changes: dict[str, object]) -> None:
    change_digests(folder, **changes)
    with pytest.raises(CheckpointError, match=r"digests\.json: "):
        ModelFolder(folder)


def test_failed_write_leaves_nothing_half_done(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (folder / "digests.json").read_bytes()

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(CheckpointError, match=r"digests\.json: cannot be written \(No space left"):
        record_digests(folder, replace=True)
    assert (folder / "digests.json").read_bytes() == before
    monkeypatch.undo()
    record_digests(folder, replace=True)
    assert sorted(os.listdir(folder)) == ["config.json", "digests.json", "model.safetensors"]


def run_tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TOOL), *arguments], capture_output=True, text=True)


@pytest.mark.slow
def test_tool(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", TENSORS)
    done = run_tool(str(folder))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{folder / 'digests.json'}\n", "")
    again = run_tool(str(folder))
    assert again.returncode == 2
    assert "already exists" in again.stderr
    assert run_tool(str(folder), "--replace").returncode == 0
    missing = run_tool(str(tmp_path / "modle"))
    assert missing.returncode == 2
    assert f"did you mean {folder}?" in missing.stderr
    (folder / "model.safetensors").write_bytes(b"x")
    damaged = run_tool(str(folder), "--replace")
    assert (damaged.returncode, damaged.stdout) == (1, "")
    assert "truncated" in damaged.stderr


def test_another_head_is_refused_when_the_folder_is_opened(folder: Path) -> None:
    """By whoever opens it: generate and batch read tensors one by one, and no head."""
    heads = json.loads((folder / "digests.json").read_text())["heads"]
    for opened in (ModelFolder, open_source):
        opened(folder)
        change_digests(folder, heads={"model.safetensors": "0" * 64})
        with pytest.raises(CheckpointError, match=r"model.safetensors: damaged: the SHA-256"):
            opened(folder)
        change_digests(folder, heads={**heads, "config.json": "0" * 64})
        with pytest.raises(CheckpointError, match="heads has 'config.json', which has no tensors"):
            opened(folder)
        change_digests(folder, heads=heads)


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
    assert [any(str(tmp_path / name) in line for line in refused.value.lines) for name in names] == [
        True for _ in names
    ]
    with pytest.raises(ConfigError, match="already exists; remove it, or give --replace") as kept:
        record_digests(tmp_path)
    assert len(kept.value.lines) == len(names)
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
    assert ["rank_1" in line or "rank_2" in line for line in refused.value.lines] == [True, True]
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
