"""What a device, its kernels or speculative decoding do not have is refused with the reason."""

import shutil
from pathlib import Path

import pytest

from task_configs import config_of, faults, faults_of_task

ONE_PROCESS = (
    "computes a model in one process, and it is divided over several here; "
    "allowed: runtime.kernels=auto, native"
)
OWN_KERNELS = "not with runtime.device_target=Ascend, which has kernels of its own; use auto"
NATIVE_KERNELS = "is for the native kernels of a CPU; use auto"
VECTORS = "is for the native kernels of a CPU, without runtime.instruction_set=amx; use auto"


@pytest.mark.needs("mindspore")
@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (
            "model.dtype=float16 runtime=cpu",
            "not with runtime.device_target=CPU, whose kernels compute in float32 and bfloat16; use auto, "
            "float32 or bfloat16 (files in half precision are converted as they are read)",
        ),
        (
            "model.dtype=float32 runtime=ascend",
            "not with runtime.device_target=Ascend, whose operators ReshapeAndCache, PagedAttention and "
            "ApplyRotaryPosEmb take float16 and bfloat16 only; use auto, bfloat16 or float16 (files in "
            "float32 are converted as they are read)",
        ),
        (
            "model.cache_dtype=float16",
            "not with runtime.device_target=CPU and model.dtype=auto; allowed: auto, float32, bfloat16",
        ),
        (
            "model.cache_dtype=float16 runtime=ascend",
            "not with runtime.device_target=Ascend and model.dtype=auto; allowed: auto, bfloat16",
        ),
        (
            "model.cache_dtype=bfloat16 runtime=ascend model.dtype=float16",
            "not with runtime.device_target=Ascend and model.dtype=float16; allowed: auto, float16",
        ),
        (
            "model.quantization=int8 runtime=ascend",
            "not with runtime.device_target=Ascend; allowed: auto, null",
        ),
        (
            "model.quantization=int8 model.dtype=bfloat16",
            "not with model.dtype=bfloat16; allowed: auto, float32",
        ),
        ("model.quantization=awq runtime=ascend", "must be one of auto, int8"),
        ("model.quantization=awq model.dtype=bfloat16", "must be one of auto, int8"),
        ("runtime.instruction_set=avx2 runtime=ascend", NATIVE_KERNELS),
        ("runtime.instruction_set=avx2 runtime.kernels=reference", NATIVE_KERNELS),
        ("runtime.arithmetic=vectors runtime=ascend", VECTORS),
        ("runtime.arithmetic=vectors runtime.kernels=reference", VECTORS),
        ("runtime.arithmetic=vectors runtime.instruction_set=amx", VECTORS),
        ("runtime.kernels=reference parallel.model_parallel=2", ONE_PROCESS),
        ("runtime.kernels=reference parallel.pipeline_stage=2", ONE_PROCESS),
        ("runtime.kernels=native runtime=ascend", OWN_KERNELS),
        ("runtime.kernels=reference runtime=ascend", OWN_KERNELS),
    ],
)
def test_what_a_device_has_not_is_refused(overrides: str, fault: str, usable: tuple[str, str]) -> None:
    first, *_ = words = overrides.split()
    line, *others = faults(*usable, *words)
    assert line == f"{first}: {fault}"
    assert others == [] or fault is ONE_PROCESS


@pytest.mark.needs("mindspore")
@pytest.mark.parametrize(
    "overrides",
    [
        "runtime=ascend",
        "runtime=ascend model.dtype=auto",
        "runtime=ascend model.dtype=float16",
        "runtime=ascend model.dtype=bfloat16",
        "runtime.kernels=reference parallel.data_parallel=2",
        "decoding.prompt_lookup_num_tokens=5",
    ],
)
def test_what_it_has_is_taken(overrides: str, usable: tuple[str, str]) -> None:
    config_of("generate", *usable, *overrides.split())


@pytest.mark.needs("mindspore")
@pytest.mark.parametrize(
    "asked", ["model.dtype=bfloat16", "model.quantization=int8", "model.cache_dtype=bfloat16"]
)
def test_who_does_not_round_weights_or_cache_is_named(asked: str, usable: tuple[str, str]) -> None:
    assert faults(*usable, asked, "model.provider=mindformers", "runtime.kernels=reference") == (
        f"{asked}: not with model.provider=mindformers, which computes in float32 on a CPU; allowed: "
        "model.provider=native",
        f"{asked}: not with runtime.kernels=reference, which compute in float32; allowed: "
        "runtime.kernels=auto, native",
        "runtime.kernels=reference: not with model.provider=mindformers, whose networks NumPy does not "
        "compute; allowed: runtime.kernels=auto, native",
    )
    config_of("generate", *usable, asked)


DRAFTS = "decoding.num_assistant_tokens=5"


def words_for(task: str, folder: Path) -> list[str]:
    """What the task cannot do without."""
    inputs = {
        "generate": ["prompts=Hi"],
        "compare": ["prompts=Hi", "decoding=[greedy]"],
        "batch": ["data.path=-", f"output.dir={folder}/run"],
        "plan": ["data.path=-"],
    }
    return [f"model.checkpoint_name_or_path={folder}", *inputs[task]]


@pytest.mark.parametrize("task", ["generate", "compare", "batch", "plan"])
def test_drafting_needs_one(task: str, model_folder: Path) -> None:
    words = [*words_for(task, model_folder), DRAFTS]
    [fault] = faults_of_task(task, *words)
    assert fault.startswith("decoding.num_assistant_tokens=5: needs model.assistant, the folder of a smaller")
    config = config_of(task, *words, f"model.assistant={model_folder}")
    assert config.model.assistant == str(model_folder)


@pytest.mark.parametrize("name", ["num_assistant_tokens", "prompt_lookup_num_tokens"])
def test_it_needs_the_past(name: str, model_folder: Path, usable: tuple[str, str]) -> None:
    given = [f"decoding.{name}=3", *([f"model.assistant={model_folder}"] if "assistant" in name else [])]
    assert faults(*usable, "model.use_past=false", *given) == (
        f"decoding.{name}=3: cannot go with model.use_past=false; set it to true",
    )


def test_one_that_nothing_asks_for(model_folder: Path, usable: tuple[str, str]) -> None:
    [fault] = faults(*usable, f"model.assistant={model_folder}")
    assert fault.startswith("model.assistant: has no effect with decoding.num_assistant_tokens=0")


@pytest.mark.parametrize("task", ["batch", "plan", "compare"])
def test_rows_and_strategies_may_ask_for_one(task: str, model_folder: Path) -> None:
    config_of(task, *words_for(task, model_folder), f"model.assistant={model_folder}")


def test_a_strategy_of_several_that_drafts(model_folder: Path) -> None:
    words = [*words_for("compare", model_folder), "decoding=[greedy,speculative]"]
    [fault] = faults_of_task("compare", *words)
    assert fault.startswith("decoding.num_assistant_tokens=5: needs model.assistant")
    config_of("compare", *words, f"model.assistant={model_folder}")


def test_its_path_is_looked_at_and_kept(
    model_folder: Path, usable: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(model_folder, tmp_path / "small")
    monkeypatch.chdir(tmp_path)
    config = config_of("generate", *usable, DRAFTS, "model.assistant=small")
    assert f"assistant: {tmp_path}/small\n" in config.unresolved_yaml
    assert config.resolved_settings["model"]["assistant"] == f"{tmp_path}/small"
    (tmp_path / "small" / "config.json").unlink()
    for folder, said in (("small", "holds no config.json"), ("smal", "did you mean small?")):
        [fault] = faults(*usable, DRAFTS, f"model.assistant={folder}")
        assert fault.startswith(f"model.assistant={folder}: ")
        assert said in fault


@pytest.mark.parametrize(
    ("release", "is_allowed"),
    [("1.8.0", False), ("1.9.0", True), ("2.0.0", True), ("2.1.0", True), ("2.1.1", True), ("2.10.0", False)],
)
def test_another_mindformers_is_named_with_those_allowed(
    release: str, is_allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it runs the model; native models run beside any."""
    monkeypatch.setattr("mindbatch.config.machine.versions", lambda packages: {"mindformers": release})
    monkeypatch.setattr("mindbatch.config.model_task.is_installed", lambda package: True)
    words = ["generate", "prompts=Hi", "model.checkpoint_name_or_path=nowhere"]
    assert not any("MindFormers" in line for line in faults_of_task(*words))
    lines = faults_of_task(*words, "model.provider=mindformers")
    wanted = (
        f"model.provider=mindformers: MindFormers {release} is installed; allowed: 1.9, 2.0, 2.1; or use "
        "model.provider=native"
    )
    assert [line for line in lines if "is installed" in line] == ([] if is_allowed else [wanted])
