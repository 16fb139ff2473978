"""Model folders: configuration, trust, links, pickles, wrong paths, and tensors that do not match."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors_writer import bfloat16_bits, write_folder

from mindbatch.checkpoint.folders.folder_files import read_config
from mindbatch.checkpoint.folders.model_folder import ModelFolder, match_tensors
from mindbatch.io.errors import CheckpointError, ConfigError

TENSORS: dict[str, npt.NDArray[Any]] = {
    "embed.weight": np.ones((4, 2), np.float32),
    "norm.weight": bfloat16_bits([1, 2]),
}
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", TENSORS)


def refusal(folder: Path, kind: type[ConfigError] | type[CheckpointError] = CheckpointError) -> str:
    with pytest.raises(kind) as caught:
        ModelFolder(folder)
    assert all("\n" not in fault for fault in caught.value.lines)
    return str(caught.value)


def test_no_generation_config(folder: Path) -> None:
    assert ModelFolder(folder).generation_config is None


@pytest.mark.parametrize("model_type", [["gpt2"], {}, 7, True])
def test_a_type_that_is_no_text(folder: Path, model_type: Any) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(CheckpointError, match=r"config.json: model_type=.*: must be a text$"):
        read_config(folder)


def test_unknown_tensor(folder: Path) -> None:
    model = ModelFolder(folder)
    for read in (model.floats, model.info, model.file_name):
        with pytest.raises(CheckpointError, match=r"no tensor 'embed.wight'; did you mean 'embed.weight'\?"):
            read("embed.wight")


class TestPath:
    def test_missing_suggests_the_nearest_sibling(self, folder: Path) -> None:
        message = refusal(folder.with_name("modle"), ConfigError)
        assert message == f"{folder.with_name('modle')}: no such folder; did you mean {folder}?"

    def test_missing_parent_suggests_its_nearest_sibling(self, folder: Path) -> None:
        assert f"did you mean {folder}?" in refusal(folder.parent / "mdel" / "sub", ConfigError)

    def test_missing_without_a_near_name(self, folder: Path) -> None:
        assert "nothing is downloaded" in refusal(folder.parent / "zzz", ConfigError)

    def test_relative(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder.parent)
        assert ModelFolder("model").names
        assert "did you mean model?" in refusal(Path("modl"), ConfigError)

    def test_file(self, folder: Path) -> None:
        message = refusal(folder / "model.safetensors", ConfigError)
        assert f"a file; must be a model folder, perhaps {folder}" in message

    @pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000])
    def test_impossible(self, path: str) -> None:
        with pytest.raises(ConfigError):
            ModelFolder(path)


class TestConfig:
    def test_missing(self, folder: Path) -> None:
        (folder / "config.json").unlink()
        assert refusal(folder) == f"{folder / 'config.json'}: missing"

    @pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
    def test_huge(self, folder: Path, name: str) -> None:
        (folder / name).write_bytes(b'{"a": "' + b"x" * 20_000_000 + b'"}')
        text = refusal(folder)
        assert text.startswith(f"{folder / name}: ")
        assert "20000009 bytes; at most 4194304 are allowed" in text

    def test_faults_of_all_files_come_at_once(self, folder: Path) -> None:
        for name in ("config.json", "generation_config.json", "model.safetensors"):
            (folder / name).write_text("[]")
        text = refusal(folder)
        assert all(name in text for name in ("config.json", "generation_config.json", "model.safetensors"))


def test_code_of_the_folder_is_told_of(folder: Path) -> None:
    """That it never runs is in test_refusals.py and test_model_refusals.py."""
    (folder / "modeling_own.py").touch()
    (folder / "configuration_own.py").touch()
    auto_map = {"AutoConfig": "configuration_own.Config"}
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": auto_map}))
    first, second = ModelFolder(folder).notes
    assert "auto_map is ignored" in first
    assert second == (
        f"{folder / 'configuration_own.py'} and 1 more: ignored; code of a model folder is never executed"
    )


class TestPickle:
    @pytest.mark.parametrize(
        ("name", "parts"),
        [
            ("model.pkl", ["only model.pkl; pickles can run code", "safetensors.torch.save_file"]),
            ("model.ckpt", ["only model.ckpt; pickles can run code", "safe_serialization=True"]),
            ("pytorch_model.bin", ["not a file of torch.save"]),
            ("model.pth", ["not a file of torch.save"]),
        ],
    )
    def test_is_refused_and_not_executed(self, folder: Path, name: str, parts: list[str]) -> None:
        (folder / "model.safetensors").unlink()
        marker = folder / "executed"
        (folder / name).write_bytes(b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR.")
        message = refusal(folder)
        assert [part for part in parts if part not in message] == []
        assert not marker.exists()

    @pytest.mark.parametrize(
        "name", ["model.pt", "consolidated.00.pth", "rng_state_0.pth", "model-00001-of-00002.safetensors"]
    )
    def test_under_another_name(self, folder: Path, name: str) -> None:
        (folder / "model.safetensors").rename(folder / name)
        assert f"no model weights, only {name}; needed is" in refusal(folder)


class TestWeightFiles:
    def test_none(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        assert "no model weights; needed is model.safetensors, or" in refusal(folder)

    def test_folder_instead_of_a_file(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").mkdir()
        assert "not a regular file" in refusal(folder)


class TestLinks:
    def test_inside_the_folder_are_followed(self, folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "weights.safetensors")
        (folder / "model.safetensors").symlink_to("weights.safetensors")
        assert set(ModelFolder(folder).names) == set(TENSORS)

    @pytest.mark.parametrize("target", ["nowhere", "model.safetensors"])
    def test_broken_and_endless_are_refused(self, folder: Path, target: str) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").symlink_to(target)
        assert "broken symbolic link" in refusal(folder)

    def cached(self, root: Path, blobs: str) -> Path:
        """A Hugging Face cache entry whose weights are a link into `blobs`."""
        snapshot = write_folder(root / "models--a--b" / "snapshots" / "0f1e", TENSORS)
        (snapshot / blobs).mkdir(parents=True)
        (snapshot / "model.safetensors").rename(snapshot / blobs / "5ca1ab1e")
        (snapshot / "model.safetensors").symlink_to(f"{blobs}/5ca1ab1e")
        return snapshot

    def test_into_the_blobs_of_the_own_cache_entry_are_followed(self, tmp_path: Path) -> None:
        snapshot = self.cached(tmp_path, "../../blobs")
        assert set(ModelFolder(snapshot).names) == set(TENSORS)
        (tmp_path / "alias").symlink_to(snapshot)
        assert set(ModelFolder(tmp_path / "alias").names) == set(TENSORS)

    @pytest.mark.parametrize(
        "blobs", ["../../../models--c--d/blobs", "../../blobs/deeper", "../blobs", "../../other"]
    )
    def test_into_other_places_of_a_cache_are_refused(self, tmp_path: Path, blobs: str) -> None:
        assert "must stay inside the model folder" in refusal(self.cached(tmp_path, blobs))


SHAPES = {"embed.weight": (4, 2), "layers.0.q_proj.weight": (2, 2), "norm.weight": (2,)}


def model(folder: Path, shapes: Mapping[str, tuple[int, ...]], dtype: type = np.float32) -> ModelFolder:
    return ModelFolder(write_folder(folder, {name: np.zeros(shape, dtype) for name, shape in shapes.items()}))


def test_a_fitting_folder_has_no_faults(tmp_path: Path) -> None:
    assert match_tensors(SHAPES, model(tmp_path, SHAPES)) == []


def test_all_kinds_of_fault_come_at_once(tmp_path: Path) -> None:
    found = {"embed.weight": (2, 4), "layers.0.query_proj.weight": (2, 2), "norm.weight": (2,), "zzz": ()}
    file = tmp_path / "model.safetensors"
    assert match_tensors(SHAPES, model(tmp_path, found)) == [
        f"{file}: tensor 'embed.weight' has shape [2, 4], needed is [4, 2]",
        f"{tmp_path}: tensor 'layers.0.q_proj.weight' is missing; needed with shape [2, 2]",
        f"{file}: tensor 'layers.0.query_proj.weight' of shape [2, 2] is not part of this model"
        "; did you mean 'layers.0.q_proj.weight'?",
        f"{file}: tensor 'zzz' of shape [] is not part of this model",
    ]


@pytest.mark.parametrize("dtype", [np.int8, np.float64])
def test_dtype_that_cannot_be_read_as_float32(tmp_path: Path, dtype: type) -> None:
    faults = match_tensors({"w": (3,)}, model(tmp_path, {"w": (2,)}, dtype))
    assert len(faults) == 1
    assert "has shape [2], needed is [3]; has dtype" in faults[0]
    assert "needed is one of F32, F16, BF16" in faults[0]


def test_optional_tensors_may_be_there(tmp_path: Path) -> None:
    folder = model(tmp_path, {**SHAPES, "layers.7.attn.bias": (1, 1), "rotary.inv_freq": (3,)})
    assert match_tensors(SHAPES, folder, ["layers.*.attn.bias", "rotary.inv_freq"]) == []
    assert len(match_tensors(SHAPES, folder, ["layers.*.attn.bia", "Rotary.inv_freq"])) == 2


def test_a_near_name_of_another_shape_is_not_suggested(tmp_path: Path) -> None:
    faults = match_tensors({"proj.weight": (2, 2)}, model(tmp_path, {"proj.weights": (2,)}))
    assert len(faults) == 2
    assert "did you mean" not in faults[1]


def test_long_lists_are_shortened_by_kind(tmp_path: Path) -> None:
    found = {f"a{i}": (1,) for i in range(100)}
    wanted = {f"b{i}": (1,) for i in range(50)}
    lines = match_tensors(wanted, model(tmp_path, found))
    assert len(lines) == 12
    assert lines[5] == "... and 45 more missing tensors"
    assert lines[11] == "... and 95 more unexpected tensors"
    alone = match_tensors({}, model(tmp_path / "other", found))
    assert len(alone) == 11
    assert alone[-1] == "... and 90 more unexpected tensors"
