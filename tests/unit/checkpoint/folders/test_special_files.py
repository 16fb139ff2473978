"""Every file of a model folder or an adapter: pipes, devices, links out and huge ones are refused."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from adapter_folders import write_adapter
from safetensors_writer import write_folder, write_shards

from mindbatch.checkpoint.folders.digests import record_digests
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.folders.resharded import read_marker
from mindbatch.checkpoint.folders.tensor_set import open_source
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.config_json.reader import NONE_IGNORED
from mindbatch.io.errors import CheckpointError
from mindbatch.model_spec.described_folder import architecture_if_sound

TENSORS = {"w": np.ones(2, np.float32)}


def link_out(path: Path) -> None:
    outside = path.parents[1] / "outside"
    path.rename(outside) if path.exists() else outside.write_text("{}")
    path.symlink_to(outside)


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def huge(path: Path) -> None:
    """An object that never ends: 1 TiB of which nothing is on the disk."""
    path.write_text("{")
    os.truncate(path, 1 << 40)


def folder_with(tmp_path: Path, name: str) -> Path:
    if name.startswith("adapter"):
        return write_adapter(tmp_path / "m")
    if name.endswith("index.json"):
        return write_shards(tmp_path / "m", {"s.safetensors": TENSORS})
    folder = write_folder(tmp_path / "m", TENSORS)
    if name == "digests.json":
        record_digests(folder)
    return folder


FILES = [
    "config.json",
    "generation_config.json",
    "digests.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "adapter_config.json",
    "adapter_model.safetensors",
]


@pytest.mark.parametrize("make", [pipe, device, link_out, huge])
@pytest.mark.parametrize("name", FILES)
def test_special_files_are_refused_by_name(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    folder = folder_with(tmp_path, name)
    openers: list[Callable[[Path], object]] = [open_adapter] if "adapter" in name else [ModelFolder]
    for opened in openers if "config" in name or "adapter" in name else [*openers, open_source]:
        opened(folder)
    make(folder / name)
    for opened in openers if "config" in name or "adapter" in name else [*openers, open_source]:
        with pytest.raises(CheckpointError, match=f"m/{name}") as refused:
            opened(folder)
        assert len(refused.value.lines) == 1


@pytest.mark.parametrize("make", [pipe, device])
def test_readers_that_report_nothing_wait_for_nothing(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """What is no marker is none; a config.json that cannot be read is somebody else's fault to tell."""
    make(tmp_path / "reshard.json")
    make(tmp_path / "config.json")
    assert read_marker(tmp_path) is None
    assert architecture_if_sound(tmp_path, "auto", NONE_IGNORED) is None


def test_many_targets_and_keys_of_an_adapter_are_compared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40,000 pairs took 17 s: every target against every module, and a near name for each of them."""
    searches: list[str] = []
    for home in ("targets", "config"):
        monkeypatch.setattr(
            f"mindbatch.checkpoint.lora.{home}.did_you_mean",
            lambda name, candidates: searches.append(name) or "",
        )
    targets = [f"t{number}" for number in range(1000)]
    with pytest.raises(CheckpointError, match="and 994 more errors"):
        open_adapter(write_adapter(tmp_path / "a", target_modules=targets))
    with pytest.raises(CheckpointError, match="more errors"):
        open_adapter(write_adapter(tmp_path / "b", **dict.fromkeys(targets, 1)))
    assert len(searches) == 20
    assert open_adapter(write_adapter(tmp_path / "c", target_modules=["self_attn.q_proj", "v_proj"])).modules
