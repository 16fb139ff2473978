"""digests.json: every changed bit is noticed and named; a digests.json that does not fit is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
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


def test_undamaged_folder_is_verified(folder: Path) -> None:
    open_verified(folder).close()
    model = ModelFolder(folder)
    assert model.floats("a.weight").tolist() == [0, 1, 2, 3]
    assert json.loads((folder / "digests.json").read_text())["algorithm"] == "sha256"


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


def test_no_flipped_header_bit_is_accepted(folder: Path) -> None:
    path = folder / "model.safetensors"
    header_end = min(ModelFolder(folder).info(name).extents[0].offset for name in TENSORS)
    for bit in range(header_end * 8):
        flip(path, bit)
        with pytest.raises(CheckpointError):
            ModelFolder(folder)
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


def test_changed_shape_or_dtype_of_the_same_size_is_refused(folder: Path) -> None:
    for replacement in (TENSORS["a.weight"].reshape(2, 2), TENSORS["a.weight"].view(np.int64)[:2]):
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").write_bytes(safetensors_bytes({**TENSORS, "a.weight": replacement}))
        with pytest.raises(CheckpointError, match=r"model.safetensors: damaged"):
            ModelFolder(folder)


def test_verify_names_all_damaged_tensors(folder: Path) -> None:
    for name in TENSORS:
        flip(folder / "model.safetensors", ModelFolder(folder).info(name).extents[0].offset * 8)
    with pytest.raises(CheckpointError) as caught:
        open_verified(folder).close()
    assert len(caught.value.faults) == 2


def test_damage_in_one_shard_leaves_the_others(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "m", {"1.safetensors": {"a": ONES}, "2.safetensors": {"b": ONES}})
    record_digests(folder)
    flip(folder / "2.safetensors", ModelFolder(folder).info("b").extents[0].offset * 8)
    model = ModelFolder(folder)
    assert model.floats("a").tolist() == [1, 1]
    with pytest.raises(CheckpointError, match=r"2\.safetensors: tensor 'b' is damaged"):
        model.floats("b")


def test_entries_must_be_exactly_the_tensors(folder: Path) -> None:
    zero = "0" * 64
    change_digests(
        folder, files={"model.safetensors": {"a.weight": zero, "c": zero}, "x.safetensors": {"d": zero}}
    )
    with pytest.raises(CheckpointError) as caught:
        ModelFolder(folder)
    assert [fault.split("digests.json: ")[1] for fault in caught.value.faults] == [
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
        {"heeds": {}},
    ],
)
def test_malformed_digests_are_refused(folder: Path, changes: dict[str, object]) -> None:
    change_digests(folder, **changes)
    with pytest.raises(CheckpointError, match=r"digests\.json: "):
        ModelFolder(folder)


def test_digests_that_are_no_json_or_a_link_out_are_refused(folder: Path) -> None:
    path = folder / "digests.json"
    path.rename(folder.parent / "digests.json")
    path.symlink_to("../digests.json")
    with pytest.raises(CheckpointError, match="symbolic link"):
        ModelFolder(folder)
    path.unlink()
    path.write_text("{")
    with pytest.raises(CheckpointError, match=r"digests\.json: not valid JSON"):
        ModelFolder(folder)


def test_writing_refuses_to_replace_unless_asked(folder: Path) -> None:
    flip(folder / "model.safetensors", ModelFolder(folder).info("a.weight").extents[0].offset * 8)
    with pytest.raises(ConfigError, match=r"digests\.json: exists already"):
        record_digests(folder)
    assert record_digests(folder, replace=True) == [folder / "digests.json"]
    open_verified(folder).close()
    assert sorted(os.listdir(folder)) == ["config.json", "digests.json", "model.safetensors"]


def test_failed_write_leaves_nothing_half_done(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (folder / "digests.json").read_bytes()

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(CheckpointError, match=r"digests\.json: cannot be written \(No space left"):
        record_digests(folder, replace=True)
    assert (folder / "digests.json").read_bytes() == before
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
    assert "exists already" in again.stderr
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
