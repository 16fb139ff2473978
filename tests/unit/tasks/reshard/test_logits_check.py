"""verify=logits: what counts as equal, what is refused; the process that runs a model, and what it reads."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from child_functions import leave
from mindbatch.architecture.architecture import Architecture
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.formats.floats import read_values
from mindbatch.checkpoint.formats.open_file import open_tensor_file
from mindbatch.checkpoint.formats.safetensors_file import safetensors_layout
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.loading.first_logits import fixed_prompts
from mindbatch.model_spec.registry import describe
from mindbatch.tasks.reshard import logits_check
from mindbatch.tasks.reshard import task as reshard
from mindbatch.tasks.reshard.logits_check import LogitDifference, WholeCheckpoint, difference_error, logits_of
from mindbatch.tasks.reshard.schema import ReshardConfig, reshard_errors
from reshard_adapters import reshard as run_reshard
from reshard_models import LLAMA, MODELS, stored, tensors_of, write_model, write_tensors
from tensor_files import write_tensor_file

Array = NDArray[np.float32]
LOGITS = np.array([[1.0, 2.0, 4.0], [3.0, 0.0, 1.0]], np.float32)


def changed(place: tuple[int, int], value: float) -> Array:
    found = LOGITS.copy()
    found[place] = value
    return found


def test_differences_are_measured() -> None:
    assert str(LogitDifference.of(LOGITS, LOGITS.copy())) == "first logits equal at 2 positions"
    difference = LogitDifference.of(LOGITS, changed((1, 2), 3.5))
    assert difference == LogitDifference(False, largest=2.5, scale=4.0, agreeing=1, positions=2)
    assert str(difference) == (
        "first logits differ by up to 2.5 and reach 4, the likeliest token is the same at 1 of 2 positions"
    )


@pytest.mark.parametrize(
    ("logits", "allowed", "fault"),
    [
        (LOGITS.copy(), None, None),
        (changed((1, 1), -0.0), None, "; must be equal to the last bit, for no weight was rounded"),
        (changed((1, 2), 1.5), 1 / 8, None),
        (changed((1, 2), 1.75), 1 / 8, "; at most 0.5 is allowed"),
        (changed((1, 2), np.nan), 1 / 8, "; at most 0.5 is allowed"),
    ],
)
def test_what_rounding_may_change(logits: Array, allowed: float | None, fault: str | None) -> None:
    difference = LogitDifference.of(LOGITS, logits)
    assert difference_error(difference, allowed) == (None if fault is None else f"{difference}{fault}")


def test_prompts_are_fixed_and_from_all_of_the_vocabulary() -> None:
    prompts = fixed_prompts(1000, 2048)
    ids = [token for prompt in prompts for token in prompt]
    assert [len(prompt) for prompt in prompts] == [8] * 4
    assert prompts == fixed_prompts(1000, 2048)
    assert len({*ids}) == 32
    assert min(ids) == 0
    assert max(ids) == 999
    assert {token // 250 for token in ids} == {0, 1, 2, 3}
    assert [len(prompt) for prompt in fixed_prompts(2, 3)] == [3] * 4
    assert {token for prompt in fixed_prompts(1, 3) for token in prompt} == {0}


class Runs:
    """Stands in for running models: gives the logits one after another."""

    def __init__(self, *found: Array) -> None:
        self.found = [*found]
        self.sources: list[str | None] = []
        self.ignored: list[Any] = []

    def __call__(self, config: ReshardConfig, architecture: Architecture) -> Array:
        assert architecture.model_type == "llama"
        self.sources.append(config.source)
        self.ignored.append(config.ignore_config_keys)
        return self.found.pop(0)


def settings(folder: Path, **target: Any) -> ReshardConfig:
    config = ReshardConfig(source=str(folder / "source"), verify="logits")
    config.target.dir = str(folder / "target")
    for name, value in target.items():
        setattr(config.target, name, value)
    return config


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    found = Runs()
    monkeypatch.setattr(logits_check, "logits_of", found)
    return found


def test_a_model_that_computes_otherwise_does_not_get_its_name(
    tmp_path: Path, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "source", LLAMA)
    runs.found += [LOGITS, changed((0, 0), 1.25)]
    with pytest.raises(CheckpointError) as error:
        reshard.run(settings(tmp_path, model_parallel=2))
    part = tmp_path / "target.part"
    assert runs.sources == [str(tmp_path / "source"), str(part)]
    assert str(error.value).startswith(f"{part}: first logits differ by up to 0.25 and reach 4, ")
    assert str(error.value).endswith("; to begin anew, remove the folder")
    assert (part / "rank_1/model.safetensors").exists()
    assert not (tmp_path / "target").exists()
    # The same command looks at what is there again.
    runs.found += [LOGITS, LOGITS]
    assert reshard.run(settings(tmp_path, model_parallel=2)) == 0
    assert (tmp_path / "target/rank_1/model.safetensors").exists()
    assert capsys.readouterr().out.endswith("first logits equal at 2 positions\n")
    # And so it does with what is done already.
    runs.found += [LOGITS, LOGITS]
    assert reshard.run(settings(tmp_path, model_parallel=2)) == 0
    assert runs.sources[-1] == str(tmp_path / "target")
    assert capsys.readouterr().out.endswith("read back and compared, first logits equal at 2 positions\n")


def test_the_models_that_are_run_are_said(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "source", LLAMA)
    runs.found += [LOGITS, LOGITS]
    lines: list[str] = []
    monkeypatch.setattr(reshard, "shown_progress", lambda: nullcontext(lambda what, *_: lines.append(what)))
    assert reshard.run(settings(tmp_path)) == 0
    assert lines[-2:] == ["running the source's model", "running the target's model"]


def test_keys_that_are_ignored_are_so_in_the_target(tmp_path: Path, runs: Runs) -> None:
    """Its config.json is a copy."""
    write_model(tmp_path / "source", LLAMA)
    file = tmp_path / "source/config.json"
    file.write_text(file.read_text().replace("{", '{"mystery": 1, ', 1))
    config = settings(tmp_path, model_parallel=2)
    config.ignore_config_keys = ["mystery"]
    runs.found += [LOGITS, LOGITS]
    assert reshard.run(config) == 0
    assert runs.ignored == [["mystery"], ["mystery"]]


@pytest.mark.parametrize(
    ("stored_as", "dtype", "is_allowed"),
    [
        ("F32", "keep", False),
        ("BF16", "float32", False),
        ("F32", "float16", True),
        ("BF16", "bfloat16", False),
    ],
)
def test_only_rounding_may_change_anything(
    tmp_path: Path, runs: Runs, stored_as: str, dtype: str, is_allowed: bool
) -> None:
    write_model(tmp_path / "source", LLAMA, stored_as)
    runs.found += [LOGITS, changed((0, 0), 1.001)]
    if is_allowed:
        assert reshard.run(settings(tmp_path, dtype=dtype)) == 0
        return
    with pytest.raises(CheckpointError, match="must be equal to the last bit"):
        reshard.run(settings(tmp_path, dtype=dtype))


def test_logits_that_are_no_numbers_show_nothing(tmp_path: Path, runs: Runs) -> None:
    write_model(tmp_path / "source", LLAMA)
    runs.found += [changed((0, 0), np.inf)] * 2
    with pytest.raises(CheckpointError, match="not all finite"):
        reshard.run(settings(tmp_path))
    assert not (tmp_path / "target").exists()


def refusal(config: ReshardConfig) -> str:
    with pytest.raises(ConfigError) as error:
        reshard.run(config)
    assert len(error.value.lines) == 1
    assert not Path(str(config.target.dir)).exists()
    assert not Path(f"{config.target.dir}.part").exists()
    return error.value.lines[0]


def test_what_cannot_run_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "source", LLAMA)
    monkeypatch.setattr(logits_check, "free_memory", lambda: 1 << 28)
    found = refusal(settings(tmp_path))
    assert found.startswith("verify=logits: the model in float32 takes ")
    assert "are free" in found
    (tmp_path / "source/config.json").unlink()
    assert refusal(settings(tmp_path)).startswith("verify=logits: no config.json says what model")


def test_dtypes_that_do_not_run_are_refused(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", LLAMA, digests=False)
    arrays = {name: stored(array, "F32").view(np.int32) for name, array in tensors_of(LLAMA).items()}
    write_tensors(source / "model.safetensors", arrays, "I32")
    found = refusal(settings(tmp_path))
    assert " is I32, and the model runs with F32, F16, BF16 only (30 such tensors); verify=true" in found


@pytest.mark.parametrize(
    ("value", "reads_back", "runs_both"), [(False, 0, 0), (True, 1, 0), ("logits", 1, 1)]
)
def test_values_of_verify(value: Any, reads_back: int, runs_both: int) -> None:
    config = ReshardConfig(verify=value)
    assert [*reshard_errors(config)] == []
    assert (config.reads_back, config.compares_logits) == (bool(reads_back), bool(runs_both))


@pytest.mark.parametrize("value", ["true", "logit", 1, None, ["logits"]])
def test_other_values_of_verify_are_refused(value: Any) -> None:
    (fault,) = reshard_errors(ReshardConfig(verify=value))
    assert fault.endswith(": must be true, false or logits")


def test_an_adapter_is_refused() -> None:
    config = ReshardConfig(verify="logits")
    config.lora.merge = "adapter"
    (fault,) = reshard_errors(config)
    assert fault.startswith("verify=logits: not with lora.merge, ")


def test_what_cannot_be_opened_is_said_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"^{tmp_path}/nowhere: no such folder"):
        logits_of(ReshardConfig(source=str(tmp_path / "nowhere")), describe(LLAMA))


def test_a_process_that_dies_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mindbatch.tasks.reshard.logits_check.answer_with_logits", leave)
    with pytest.raises(CheckpointError, match=r"^source: the process .* has died \(exit code 3\)"):
        logits_of(ReshardConfig(source="source"), describe(LLAMA))


# ---- a checkpoint read as one model

WAYS: list[dict[str, Any]] = [
    {},
    {"target_model_parallel": 8, "target_format": "ckpt"},
    {"target_model_parallel": 2, "target_pipeline_stage": 2},
    {"target_model_parallel": 2, "target_names": "mindformers"},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_every_tensor_is_as_before(tmp_path: Path, model: str, way: dict[str, Any]) -> None:
    """Before it was cut or renamed."""
    source = write_model(tmp_path / "source", MODELS[model], "BF16")
    run_reshard(source, tmp_path / "target", **way)
    before = ModelFolder(source)
    with WholeCheckpoint(ReshardConfig(source=str(tmp_path / "target"))) as after:
        assert {*after.names} == {*before.names}
        for name in before.names:
            assert after.info(name).shape == before.info(name).shape
            expected, floats = before.floats(name), after.floats(name)
            assert floats.dtype == np.float32
            assert floats.tobytes() == expected.tobytes()
            assert after.floats(name, rows=slice(1, 3)).tobytes() == expected[1:3].tobytes()
            assert (tmp_path / "target" / after.file_name(name)).is_file()


def test_parts_of_several_dtypes_make_one_tensor(tmp_path: Path) -> None:
    """As a fused tensor of Hugging Face is made of MindFormers' separate ones."""
    source = write_model(tmp_path / "source", MODELS["gpt2"], "BF16")
    run_reshard(source, tmp_path / "target", target_names="mindformers", target_dtype="float32")
    path = tmp_path / "target" / "model.safetensors"
    with open_tensor_file(path) as file:
        arrays = {name: read_values(file, name) for name in file.tensors}
    dtypes = {name: "F32" if "dense2" in name else "BF16" for name in arrays}
    layout = safetensors_layout([(name, dtypes[name], array.shape) for name, array in arrays.items()])
    write_tensor_file(path, layout, lambda name: [stored(arrays[name], dtypes[name]).data.cast("B")])
    (tmp_path / "target" / "digests.json").unlink()
    whole = WholeCheckpoint(ReshardConfig(source=str(tmp_path / "target")))
    with ModelFolder(source) as before, whole as after:
        for name in before.names:
            np.testing.assert_array_equal(after.floats(name), before.floats(name), name)
