"""Model folders: configuration, trust, links, pickles, and what a wrong path gets."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors_writer import bfloat16_bits, safetensors_bytes, write_folder

from mindbatch.checkpoint.folders.folder_files import read_config
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.formats.ckpt_file import ckpt_layout
from mindbatch.io.errors import CheckpointError, ConfigError
from tensor_files import write_tensor_file

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
    assert all("\n" not in fault for fault in caught.value.faults)
    return str(caught.value)


def test_a_folder_gives_config_and_tensors(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    model = ModelFolder(str(folder))
    assert model.config == {"model_type": "llama"}
    assert model.generation_config == {"eos_token_id": [1, 2]}
    assert set(model.names) == set(TENSORS)
    assert model.nbytes == 32 + 4
    assert model.info("embed.weight").shape == (4, 2)
    assert model.file_name("norm.weight") == "model.safetensors"
    assert model.floats("norm.weight").tolist() == [1, 2]
    assert model.info("norm.weight").dtype == "BF16"
    assert model.floats("embed.weight", rows=slice(1, 3)).sum() == 4
    assert model.notes == ()


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
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b'{"a": "' + b"x" * 20_000_000 + b'"}', "20000009 bytes; at most 4194304 are allowed"),
            (b'{"hidden_size": 1, "hidden_size": 2}', "'hidden_size' appears twice"),
            (b"[]", "holds a JSON array; must be an object"),
            (b"{", "not valid JSON"),
            (LFS.encode(), "Git LFS pointer"),
        ],
        ids=["20 MB", "duplicate", "list", "torn", "pointer"],
    )
    def test_damaged(self, folder: Path, name: str, content: bytes, message: str) -> None:
        (folder / name).write_bytes(content)
        text = refusal(folder)
        assert text.startswith(f"{folder / name}: ")
        assert message in text

    def test_faults_of_all_files_come_at_once(self, folder: Path) -> None:
        for name in ("config.json", "generation_config.json", "model.safetensors"):
            (folder / name).write_text("[]")
        text = refusal(folder)
        assert all(name in text for name in ("config.json", "generation_config.json", "model.safetensors"))

    def test_pipe_is_refused_without_waiting(self, folder: Path) -> None:
        (folder / "config.json").unlink()
        os.mkfifo(folder / "config.json")
        assert "not a regular file" in refusal(folder)


class TestTrust:
    def test_code_of_the_folder_is_never_executed(self, folder: Path) -> None:
        marker = folder / "executed"
        code = f"open({str(marker)!r}, 'w').close()\n"
        for name in (
            "modeling_evil.py",
            "configuration_evil.py",
            "__init__.py",
            "tokenization_evil.py",
            "json.py",
        ):
            (folder / name).write_text(code)
        auto_map = {"AutoConfig": "configuration_evil.Config", "AutoModelForCausalLM": "modeling_evil.Model"}
        (folder / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": auto_map}))
        model = ModelFolder(folder)
        for name in model.names:
            model.floats(name)
        assert not marker.exists()
        assert not any("evil" in module for module in sys.modules)
        assert len(model.notes) == 2
        assert "auto_map is ignored" in model.notes[0]
        assert "never executed" in model.notes[1]
        exec(code)  # the marker does work
        assert marker.exists()


class TestPickle:
    @pytest.mark.parametrize("name", ["model.pkl", "model.ckpt"])
    def test_is_refused_with_the_way_to_convert(self, folder: Path, name: str) -> None:
        (folder / "model.safetensors").unlink()
        marker = folder / "executed"
        (folder / name).write_bytes(b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR.")
        message = refusal(folder)
        assert f"only {name}; pickles can run code" in message
        assert "safe_serialization=True" in message
        assert "safetensors.torch.save_file" in message
        assert not marker.exists()

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pth"])
    def test_is_not_executed(self, folder: Path, name: str) -> None:
        (folder / "model.safetensors").unlink()
        marker = folder / "executed"
        (folder / name).write_bytes(b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR.")
        assert "not a file of torch.save" in refusal(folder)
        assert not marker.exists()

    @pytest.mark.parametrize("name", ["model.pt", "consolidated.00.pth", "rng_state_0.pth"])
    def test_under_another_name(self, folder: Path, name: str) -> None:
        (folder / "model.safetensors").rename(folder / name)
        assert f"no model weights, only {name}; needed is" in refusal(folder)

    def test_beside_safetensors_is_ignored(self, folder: Path) -> None:
        (folder / "pytorch_model.bin").write_bytes(b"x")
        assert ModelFolder(folder).names

    @pytest.mark.parametrize("content", [b"PK\x03\x04" + b"\0" * 40, b"\x80\x02}q\x00X\x04\x00\x00\x00name"])
    def test_renamed_to_safetensors_is_named(self, folder: Path, content: bytes) -> None:
        (folder / "model.safetensors").write_bytes(content)
        assert re.search("never executed|a PyTorch checkpoint is one", refusal(folder))


class TestWeightFiles:
    def test_none(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        assert "no model weights; needed is model.safetensors, or" in refusal(folder)

    def test_of_mindspore(self, folder: Path) -> None:
        """Such a .ckpt is no pickle: that it is never executed would be untrue."""
        (folder / "model.safetensors").unlink()
        layout = ckpt_layout([("a", "F32", (1,))])
        write_tensor_file(folder / "model.ckpt", layout, lambda _: [bytes(4)])
        message = refusal(folder)
        assert "no model weights, only model.ckpt; needed is" in message
        assert "mindbatch reshard" in message
        assert "pickle" not in message

    def test_under_another_name(self, folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
        assert "only model-00001-of-00002.safetensors; needed is" in refusal(folder)

    def test_lfs_pointer(self, folder: Path) -> None:
        (folder / "model.safetensors").write_text(LFS)
        message = refusal(folder)
        assert f"{folder / 'model.safetensors'}: a Git LFS pointer" in message
        assert "git lfs pull" in message

    def test_folder_instead_of_a_file(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").mkdir()
        assert "not a regular file" in refusal(folder)


class TestLinks:
    @pytest.mark.parametrize("name", ["model.safetensors", "config.json", "generation_config.json"])
    def test_out_of_the_folder_are_refused(self, folder: Path, name: str) -> None:
        outside = folder.parent / "outside"
        outside.write_bytes(b"{}" if name.endswith("json") else safetensors_bytes(TENSORS))
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(outside)
        assert f"{folder / name}: symbolic link to {outside}; must stay inside" in refusal(folder)

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
