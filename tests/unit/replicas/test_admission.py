"""Which processes may take part in a job: hosts with other versions or model folders are refused by name."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from mindbatch.checkpoint.folders.digests import folder_digest
from mindbatch.config.lora_schema import LoraConfig
from mindbatch.config.machine import GIB, MachineMemory, versions
from mindbatch.config.model_schema import ModelConfig, ParallelConfig, RuntimeConfig
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.config.paths import data_root
from mindbatch.io.errors import CheckpointError, ConfigError, MindBatchError
from mindbatch.replicas import load
from mindbatch.replicas.messages import COMPARED, RankAdmission

RUNTIME, PARALLEL = RuntimeConfig(num_threads=3), ParallelConfig(data_parallel=2)


def folder(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "gpt2"}')
    (path / "model.safetensors").write_bytes(bytes(5000))
    (path / "digests.json").write_text("{}")
    (path / "notes.md").write_text("mine")
    return path


def admission(path: Path) -> RankAdmission:
    model = ModelConfig(checkpoint_name_or_path=str(path))
    return RankAdmission(model, RUNTIME, PARALLEL, replicas_are_local=True, has_worlds=False)


def hello(**found: str) -> dict[str, Any]:
    return {"host": "far", "versions": {**versions(COMPARED), **found}}


def test_a_rank_of_the_same_versions_is_told_the_job(tmp_path: Path) -> None:
    model = folder(tmp_path / "model")
    admitted = admission(model)
    job = json.loads(json.dumps(admitted.job(1, hello(another="1.0"))))
    assert ModelConfig(**job["model"]).checkpoint_name_or_path == str(model)
    assert RuntimeConfig(**job["runtime"]) == RUNTIME
    assert ParallelConfig(**job["parallel"]) == PARALLEL
    admitted.check_model(1, {"digests": [folder_digest(model)]})


def test_another_adapter_is_refused(tmp_path: Path) -> None:
    model, ours, theirs = folder(tmp_path / "model"), folder(tmp_path / "ours"), folder(tmp_path / "theirs")
    for path, last in ((ours, b"a"), (theirs, b"b")):  # beyond what is compared of weights
        (path / "adapter_model.safetensors").write_bytes(bytes(2 << 20) + last)
    lora = LoraConfig({"law": str(ours), "base": None}, "law")
    config = ModelConfig(checkpoint_name_or_path=str(model))
    admitted = RankAdmission(config, RUNTIME, PARALLEL, lora, replicas_are_local=True, has_worlds=False)
    job = json.loads(json.dumps(admitted.job(2, hello())))
    assert LoraConfig(**job["lora"]) == lora
    admitted.check_model(2, {"digests": [*map(folder_digest, (model, ours))]})
    with pytest.raises(CheckpointError, match=f"^{ours}: another one on far"):
        admitted.check_model(2, {"digests": [*map(folder_digest, (model, theirs))]})


@pytest.mark.needs("mindspore")
@pytest.mark.parametrize(
    ("theirs", "said"), [("2.8.0", "mindspore 2.8.0"), ("", "mindspore is not installed")]
)
def test_other_versions_are_refused(tmp_path: Path, theirs: str, said: str) -> None:
    with pytest.raises(
        MindBatchError, match=f"^rank 3 on far: {said}, and here {versions(COMPARED)['mindspore']};"
    ):
        admission(folder(tmp_path / "model")).job(3, hello(mindspore=theirs))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", bytes(5001)),
        ("model.safetensors", b"x" + bytes(4999)),
        ("model-2.safetensors", b""),
        ("digests.json", b"[]"),
    ],
)
def test_another_model_folder_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    ours, theirs = folder(tmp_path / "ours"), folder(tmp_path / "theirs")
    (theirs / "notes.md").write_text("theirs")  # no part of the model, like a folder
    (theirs / "rank_0").mkdir()
    admitted = admission(ours)
    admitted.job(2, hello())
    admitted.check_model(2, {"digests": [folder_digest(theirs)]})
    (theirs / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"/ours: another one on far \(rank 2\) than here;"):
        admitted.check_model(2, {"digests": [folder_digest(theirs)]})


def test_each_machine_is_asked_whether_its_ranks_fit(tmp_path: Path) -> None:
    asked: list[tuple[list[int], MachineMemory]] = []

    def check(ranks: Collection[int], machine: MachineMemory) -> None:
        asked.append((sorted(ranks), machine))

    model = ModelConfig(checkpoint_name_or_path=str(folder(tmp_path / "model")))
    admitted = RankAdmission(model, RUNTIME, PARALLEL, None, check, replicas_are_local=True, has_worlds=False)
    memory = (8 * GIB, 5 * GIB, None)
    for rank, boot in ((0, "a"), (1, "b"), (2, "a")):  # two machines of one name
        admitted.job(rank, hello() | {"boot": boot, "memory": memory})
    admitted.job(3, hello() | {"memory": None})  # whose system does not say
    admitted.forget([0, 1])
    admitted.job(1, hello() | {"boot": "a", "memory": memory})
    there = MachineMemory(8 * GIB, 5 * GIB, "far")
    assert asked == [([0], there), ([1], there), ([0, 2], there), ([1, 2], there)]


def test_a_machine_with_too_little_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are counted where they are, whatever there is here."""
    machine, taken = MachineMemory(7 << 20, 0, "far"), []

    class Admission(RankAdmission):
        def __init__(self, *args: Any, **options: Any) -> None:
            taken.append(args[-1])
            raise InterruptedError

    monkeypatch.setattr(load, "RankAdmission", Admission)
    model = ModelConfig(checkpoint_name_or_path=str(data_root() / "examples/tiny_gpt2"))
    config = ModelTaskConfig(model=model, parallel=PARALLEL, runtime=RuntimeConfig(cache_memory="2MiB"))
    with pytest.raises(InterruptedError):
        load.load_replicas(config)
    [check] = taken
    check([1], machine)
    with pytest.raises(ConfigError, match="^memory: 2 processes need .*, and far has 7.0 MiB, "):
        check([0, 1], machine)


def test_a_setup_that_was_handed_on_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelConfig(checkpoint_name_or_path=str(data_root() / "examples/tiny_gpt2"))
    config = ModelTaskConfig(model=model, parallel=PARALLEL, runtime=RuntimeConfig(cache_memory="900TiB"))
    config.job = load.set_up(config.launch, load.topology_of(PARALLEL), {})
    monkeypatch.setattr(load, "set_up", None)
    with pytest.raises(ConfigError, match="^runtime.cache_memory=900TiB for each of 2 processes"):
        load.load_replicas(config)
