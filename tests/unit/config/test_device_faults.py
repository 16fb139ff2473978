"""Types of numbers, kernels and instructions that a device does not have are refused with the reason."""

import pytest

from config_mistakes import faults
from mindbatch.config.compose import compose_task
from mindbatch.tasks.generate.schema import GenerateConfig
from mindbatch.tasks.registry import TASKS


@pytest.mark.parametrize(
    ("device", "dtype", "reason"),
    [
        ("CPU", "float16", "whose kernels compute in float32 and bfloat16; use auto, float32 or bfloat16 ("),
        ("Ascend", "float32", "whose operators ReshapeAndCache, PagedAttention and ApplyRotary"),
    ],
)
def test_types_are_refused_with_the_reason(
    device: str, dtype: str, reason: str, usable: tuple[str, str]
) -> None:
    (line,) = faults(*usable, f"model.dtype={dtype}", f"runtime={device.lower()}")
    assert line.startswith(f"model.dtype={dtype}: not with runtime.device_target={device}, {reason}")


@pytest.mark.parametrize("dtype", ["auto", "float16", "bfloat16"])
def test_half_types_are_taken_on_an_npu(dtype: str, usable: tuple[str, str]) -> None:
    config = compose_task(TASKS["generate"], [*usable, "runtime=ascend", f"model.dtype={dtype}"]).finish()
    assert isinstance(config, GenerateConfig)


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
    assert isinstance(compose_task(TASKS["generate"], [*usable, asked]).finish(), GenerateConfig)


@pytest.mark.parametrize(
    ("overrides", "allowed"),
    [
        (["model.cache_dtype=float16"], "CPU and model.dtype=auto; allowed: auto, float32, bfloat16"),
        (
            ["model.cache_dtype=float16", "runtime=ascend"],
            "Ascend and model.dtype=auto; allowed: auto, bfloat16",
        ),
        (
            ["model.cache_dtype=bfloat16", "runtime=ascend", "model.dtype=float16"],
            "Ascend and model.dtype=float16; allowed: auto, float16",
        ),
    ],
)
def test_a_cache_is_kept_in_few_types(overrides: list[str], allowed: str, usable: tuple[str, str]) -> None:
    assert faults(*usable, *overrides) == (f"{overrides[0]}: not with runtime.device_target={allowed}",)


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (["runtime=ascend"], "not with runtime.device_target=Ascend; allowed: null"),
        (["model.dtype=bfloat16"], "not with model.dtype=bfloat16; allowed: auto, float32"),
    ],
)
def test_int8_is_for_the_kernels_of_a_cpu_and_beside_float32(
    overrides: list[str], fault: str, usable: tuple[str, str]
) -> None:
    assert faults(*usable, "model.quantization=int8", *overrides) == (f"model.quantization=int8: {fault}",)
    assert faults(*usable, "model.quantization=awq", *overrides) == (
        "model.quantization=awq: must be one of int8",
    )


@pytest.mark.parametrize("other", ["runtime=ascend", "runtime.kernels=reference"])
def test_instructions_are_chosen_for_native_kernels_only(other: str, usable: tuple[str, str]) -> None:
    assert faults(*usable, "runtime.instruction_set=avx2", other) == (
        "runtime.instruction_set=avx2: is for the native kernels of a CPU; use auto",
    )


@pytest.mark.parametrize("size", ["model_parallel", "pipeline_stage"])
def test_numpy_computes_in_one_process(size: str, usable: tuple[str, str]) -> None:
    assert faults(*usable, "runtime.kernels=reference", f"parallel.{size}=2")[0] == (
        "runtime.kernels=reference: computes a model in one process, and it is divided over several here; "
        "allowed: runtime.kernels=auto, native"
    )
    words = [*usable, "runtime.kernels=reference", "parallel.data_parallel=2"]
    assert isinstance(compose_task(TASKS["generate"], words).finish(), GenerateConfig)


@pytest.mark.parametrize("kernels", ["native", "reference"])
def test_other_kernels_than_its_own_are_refused_on_an_npu(kernels: str, usable: tuple[str, str]) -> None:
    assert faults(*usable, f"runtime.kernels={kernels}", "runtime=ascend") == (
        f"runtime.kernels={kernels}: not with runtime.device_target=Ascend, which has kernels of its own; "
        "use auto",
    )
    assert isinstance(compose_task(TASKS["generate"], [*usable, "runtime=ascend"]).finish(), GenerateConfig)
