"""Adapters of the section `lora` beside the shipped model: named in faults, under every name, and counted."""

import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from safetensors_writer import safetensors_bytes

from mindbatch.backends import native
from mindbatch.checkpoint.lora.adapter import LoraAdapter, open_adapter
from mindbatch.config.lora_schema import LoraConfig
from mindbatch.config.model_schema import ModelConfig
from mindbatch.io.errors import CheckpointError
from mindbatch.loading.prepared_adapters import PreparedAdapters, open_adapters, prepare_adapters
from mindbatch.loading.providers import open_model
from mindbatch.parallel.topology import WHOLE_MODEL, RankPart, TensorSlice
from peft_folders import TINY, write_adapter


def prepared(adapters: dict[str, Path], part: RankPart = WHOLE_MODEL) -> PreparedAdapters:
    lora = LoraConfig({name: str(path) for name, path in adapters.items()})
    return prepare_adapters(lora, open_model(ModelConfig(checkpoint_name_or_path=str(TINY)), part), native)


def renamed(folder: Path, old: str, new: str) -> Path:
    """The adapter with other names of its tensors."""
    file = folder / "adapter_model.safetensors"
    tensors = {name.replace(old, new): array for name, array in load_file(file).items()}
    file.write_bytes(safetensors_bytes(tensors))
    return folder


def test_faults_name_the_adapter(tmp_path: Path) -> None:
    good, other = write_adapter(tmp_path / "a", 2, 1), write_adapter(tmp_path / "b", 2, 1)
    renamed(other, "h.2.mlp.c_fc", "h.3.mlp.c_fc")
    with pytest.raises(CheckpointError) as caught:
        prepared({"law": good, "med": other, "sft": other})
    told = "tensor 'base_model.model.transformer.h.3.mlp.c_fc.lora_A.weight': the model has no"
    assert len(caught.value.lines) == 2
    for name, line in zip(("med", "sft"), caught.value.lines, strict=True):
        assert line.startswith(f"lora.adapters.{name}: {other}: {told}")


@pytest.mark.parametrize(("old", "new"), [("transformer.", ""), ("base_model.model.", "")])
def test_adapters_of_the_base_model_have_no_prefix(tmp_path: Path, old: str, new: str) -> None:
    adapters = {
        "own": write_adapter(tmp_path / "own", 2, 1),
        "bare": renamed(write_adapter(tmp_path / "bare", 2, 1), old, new),
    }
    live = prepared(adapters).live
    assert live is not None
    assert {*live.adapters["own"].modules} == {*live.adapters["bare"].modules}


def test_another_base_is_a_warning(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", 2, 1)
    text = (folder / "adapter_config.json").read_text()
    assert prepared({"law": folder}).warnings == ()
    (folder / "adapter_config.json").write_text(
        text.replace("{", '{"base_model_name_or_path": "me/other", ', 1)
    )
    [line] = prepared({"law": folder}).warnings
    assert line.startswith(f"lora.adapters.law: {folder}: base_model_name_or_path='me/other'")
    assert "tiny_gpt2" in line


@pytest.mark.parametrize(
    ("part", "numbers"),
    [
        (WHOLE_MODEL, [3 * (96 + 288 + 96 + 96 + 96 + 384 + 384 + 96)]),
        (
            RankPart(stages=2, device_map=(1, 2)),
            [stage * (96 + 288 + 96 + 96 + 96 + 384 + 384 + 96) for stage in (1, 2)],
        ),
        (RankPart(TensorSlice(1, 2)), [3 * (96 + 144 + 48 + 96 + 96 + 192 + 192 + 96)]),
    ],
    ids=["whole", "stages", "ranks"],
)
def test_numbers_of_a_slot(tmp_path: Path, part: RankPart, numbers: list[int]) -> None:
    """A rank of each stage holds so many of the largest adapter, for each unit of its rank."""
    live = prepared({str(rank): write_adapter(tmp_path / str(rank), rank, 1) for rank in (2, 5)}, part).live
    assert live is not None
    assert live.slot_numbers == tuple(5 * number for number in numbers)


def test_an_adapter_is_opened_once_until_its_files_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, opened = write_adapter(tmp_path / "a", 2, 1), []

    def counting(path: Path, *given: object, **named: object) -> LoraAdapter:
        opened.append(path)
        return open_adapter(path, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("mindbatch.checkpoint.lora.adapter.open_adapter", counting)
    digests = [open_adapters(LoraConfig({name: str(folder)}))[name].digest for name in ("law", "med")]
    assert (len(opened), len({*digests})) == (1, 1)
    shutil.rmtree(folder)
    write_adapter(folder, 2, 3)
    assert open_adapters(LoraConfig({"law": str(folder)}))["law"].digest != digests[0]
    assert len(opened) == 2
