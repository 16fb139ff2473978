"""A checkpoint read as one model has the values that it had before it was cut or renamed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.io.errors import CheckpointError
from mindbatch.tasks.reshard.logits_check import WholeCheckpoint
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run
from reshard_models import LLAMA, MODELS, write_model

WAYS: list[dict[str, Any]] = [
    {},
    {"model_parallel": 8, "format": "ckpt"},
    {"model_parallel": 2, "pipeline_stage": 2},
    {"model_parallel": 2, "names": "mindformers"},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_every_tensor_is_as_before(tmp_path: Path, model: str, way: dict[str, Any]) -> None:
    source = write_model(tmp_path / "source", MODELS[model], "BF16")
    config = ReshardConfig(source=str(source))
    config.target.dir = str(tmp_path / "target")
    for name, value in way.items():
        setattr(config.target, name, value)
    assert run(config) == 0
    before = ModelFolder(source)
    with WholeCheckpoint(ReshardConfig(source=config.target.dir)) as after:
        assert {*after.names} == {*before.names}
        for name in before.names:
            assert after.info(name).shape == before.info(name).shape
            expected = before.floats(name)
            found = after.floats(name)
            assert found.dtype == np.float32
            assert found.tobytes() == expected.tobytes()
            assert after.floats(name, rows=slice(1, 3)).tobytes() == expected[1:3].tobytes()
            assert (Path(config.target.dir) / after.file_name(name)).is_file()


def test_damage_is_named(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", LLAMA)
    path = source / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with WholeCheckpoint(ReshardConfig(source=str(source))) as model:
        for name in model.names[:-1]:
            model.floats(name)
        with pytest.raises(CheckpointError, match=f"{path}: tensor '{model.names[-1]}' is damaged"):
            model.floats(model.names[-1])
