"""`mindbatch reshard lora.merge=`: what tells one merge from another, and every refusal."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.tasks.reshard.schema import ReshardConfig, reshard_faults
from reshard_adapters import (
    ALPHA,
    RANK,
    merged_at_once,
    reshard,
    write_adapter_for,
)
from reshard_models import LLAMA, MODELS, contents, tensors_of, write_model, write_tensors

Q0 = "model.layers.0.self_attn.q_proj"
ONE_LAYER = {**LLAMA, "num_hidden_layers": 1}


# ---- what tells one merge from another


def test_another_adapter_is_another_reshard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = write_model(tmp_path / "start", ONE_LAYER)
    one, other = (write_adapter_for(tmp_path / f"a{seed}", ONE_LAYER, seed=seed) for seed in (1, 2))
    third = write_adapter_for(tmp_path / "a3", ONE_LAYER, seed=1, lora_alpha=ALPHA + 1)
    target = tmp_path / "made"
    reshard(start, target, one)
    reshard(start, target, one)
    assert "was there already, the same reshard" in capsys.readouterr().out
    fourth = write_adapter_for(tmp_path / "a4", ONE_LAYER, seed=1, alpha_pattern={"q_proj": ALPHA + 1})
    for adapter in (None, other, third, fourth):
        with pytest.raises(ConfigError, match=r"holds another reshard \(adapter(s|_scalings) was"):
            reshard(start, target, adapter)
    reshard(start, target, other, target_replace=True)
    assert contents(target) == [merged_at_once(contents(start)[0], other)]


@pytest.mark.parametrize("between", [0, 1])
def test_an_adapter_is_not_merged_twice(tmp_path: Path, between: int) -> None:
    """Also where the checkpoint was cut in between, the folder of the adapter moved, its scaling changed."""
    start = write_model(tmp_path / "start", ONE_LAYER)
    adapter = write_adapter_for(tmp_path / "adapter", ONE_LAYER)
    other = write_adapter_for(tmp_path / "other", ONE_LAYER, seed=2)
    reshard(start, tmp_path / "step0", adapter)
    for step in range(between):
        reshard(tmp_path / f"step{step}", tmp_path / f"step{step + 1}", target_model_parallel=2)
    last = tmp_path / f"step{between}"
    moved = write_adapter_for(tmp_path / "moved", ONE_LAYER, lora_alpha=1)
    message = f"lora.merge={moved}: {last} has this adapter merged already, with scaling 2 "
    with pytest.raises(ConfigError, match=message):
        reshard(last, tmp_path / "twice", moved)
    assert not list(tmp_path.glob("twice*"))
    reshard(last, tmp_path / "both", other)
    for file in (tmp_path / "both", tmp_path / "both/model.safetensors"):
        for each in (adapter, other):
            with pytest.raises(ConfigError, match="merged already"):
                reshard(file, tmp_path / "twice", each)


# ---- what is refused before anything is written


def refused(tmp_path: Path, message: str, adapter: Path, source: Path | None = None, **options: Any) -> None:
    start = source or write_model(tmp_path / "start", ONE_LAYER)
    with pytest.raises((CheckpointError, ConfigError), match=message):
        reshard(start, tmp_path / "made", adapter, **options)
    assert not list(tmp_path.glob("made*"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r": 4}, r"shape \[3, 32\] must be \[r, inputs\] with r=4"),
        ({"use_dora": True}, "use_dora is true, and it has no lora_magnitude_vector"),
        ({"task_type": "SEQ_CLS"}, "a classification head"),
        ({"target_modules": ["q_proj"]}, "is none of target_modules"),
        ({"factor": 0.0}, "the adapter would have no effect"),
        ({"factor": np.inf}, "has values that are infinite or no numbers"),
        ({"factor": np.nan}, "has values that are infinite or no numbers"),
    ],
    ids=str,
)
def test_an_adapter_that_is_not_right(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    refused(tmp_path, message, write_adapter_for(tmp_path / "adapter", ONE_LAYER, **changes))


def test_an_adapter_of_another_model(tmp_path: Path) -> None:
    deeper = write_adapter_for(tmp_path / "deeper", LLAMA)
    refused(tmp_path, "the model has no 'model.layers.1.self_attn.q_proj.weight'", deeper)
    wider = write_adapter_for(tmp_path / "wider", {**ONE_LAYER, "hidden_size": 48})
    refused(tmp_path, r"are for a weight of \[48, 48\]; .* has \[32, 32\]", wider, tmp_path / "start")


def test_a_tied_head_is_not_adapted(tmp_path: Path) -> None:
    source = write_model(tmp_path / "start", MODELS["tied"])
    adapter = write_adapter_for(tmp_path / "adapter", LLAMA)
    refused(tmp_path, "module 'lm_head': the head and the token embedding are one tensor", adapter, source)


def test_weights_that_are_no_floats(tmp_path: Path) -> None:
    arrays = {name: array.astype(np.float64) for name, array in tensors_of(ONE_LAYER).items()}
    write_tensors(tmp_path / "full.ckpt", arrays, "F64")
    adapter = write_adapter_for(tmp_path / "adapter", ONE_LAYER)
    refused(tmp_path, f"'{Q0}.weight' is F64, to which nothing", adapter, tmp_path / "full.ckpt")


def test_the_scaling_is_given_where_the_config_has_none(tmp_path: Path) -> None:
    start = write_model(tmp_path / "start", ONE_LAYER)
    said = write_adapter_for(tmp_path / "said", ONE_LAYER, lora_alpha=0.7 * RANK)
    unsaid = write_adapter_for(tmp_path / "unsaid", ONE_LAYER, lora_alpha=None)
    refused(tmp_path, "lora_alpha=null: must be a number above 0", unsaid, start)
    refused(tmp_path, r"says the scaling 0.7 .*, given was 2; remove one", said, start, scaling=2.0)
    expected = [merged_at_once(contents(start)[0], said)]
    reshard(start, tmp_path / "a", unsaid, scaling=0.7)
    reshard(start, tmp_path / "b", said, scaling=0.7)
    (unsaid / "adapter_config.json").unlink()
    refused(tmp_path, "adapter_config.json: missing", unsaid, start)
    reshard(start, tmp_path / "c", unsaid, scaling=0.7)
    assert contents(tmp_path / "a") == contents(tmp_path / "b") == contents(tmp_path / "c") == expected


def test_options_without_effect() -> None:
    config = ReshardConfig()
    config.lora.scaling = 0.0
    lines = [*reshard_faults(config)]
    assert lines[0].startswith("lora.scaling: has no effect without lora.merge")
    assert lines[1].startswith("lora.scaling=0.0: must be a number other than 0")
    config.lora.merge, config.lora.scaling = "adapter", 1.0
    config.target.overflow = "infinity"
    assert [*reshard_faults(config)] == []


# ---- what is found on the way


def test_sums_that_are_too_large_are_refused_by_name(tmp_path: Path) -> None:
    start = write_model(tmp_path / "start", ONE_LAYER, "F16")
    adapter = write_adapter_for(tmp_path / "adapter", ONE_LAYER, factor=1e5)
    with pytest.raises(CheckpointError, match="tensor '.*.weight': .* values are too large for F16"):
        reshard(start, tmp_path / "made", adapter)
    assert not (tmp_path / "made").exists()
    reshard(start, tmp_path / "made", adapter, target_overflow="infinity", verify=True)
    huge = write_adapter_for(tmp_path / "huge", ONE_LAYER, factor=5e37)
    with pytest.raises(CheckpointError, match="their product has values that are too large for F32"):
        reshard(start, tmp_path / "other", huge)


def test_a_damaged_source_is_still_found(tmp_path: Path) -> None:
    """The digests are of the stored bytes."""
    start = write_model(tmp_path / "start", ONE_LAYER, "BF16")
    adapter = write_adapter_for(tmp_path / "adapter", ONE_LAYER)
    data = bytearray((start / "model.safetensors").read_bytes())
    head = 8 + int.from_bytes(data[:8], "little")
    place = json.loads(data[8:head])[f"{Q0}.weight"]["data_offsets"][0]
    data[head + place + 100] ^= 1
    (start / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=f"tensor '{Q0}.weight' is damaged"):
        reshard(start, tmp_path / "made", adapter, target_model_parallel=2)
