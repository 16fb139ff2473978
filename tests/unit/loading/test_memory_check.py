"""Weights and caches that a machine does not hold are refused, with remedies."""

import errno
from dataclasses import replace
from typing import Any, cast

import pytest

from mindbatch.backends.adapter_weights import FittedAdapters
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.config.machine import GIB, MachineMemory
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.engine.settings import EngineSettings
from mindbatch.io.errors import ConfigError, MindBatchError
from mindbatch.loading import memory_check
from mindbatch.loading.memory_check import MemoryDemand, naming_exhaustion, refuse_beyond_memory
from mindbatch.loading.prepared_adapters import PreparedAdapters
from mindbatch.loading.providers import OpenedFolder
from mindbatch.loading.setup import EngineSetup
from sizes import Sizes, sizes

# Two stages: a rank of the first has 1 GiB of weights in float32, one of the second 2; a token takes 1 MiB.
SPEC = sizes((1 << 28, 2 << 28), 1 << 18)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_check, "memory_here", lambda: MachineMemory(8 * GIB, 5 * GIB))


def setup_of(
    model: ModelConfig,
    runtime: RuntimeConfig,
    spec: Sizes,
    cache_gib: int,
    assistant: Sizes | None = None,
    adapters: FittedAdapters | None = None,
) -> EngineSetup:
    """Of a model of these sizes, of whose folders nothing is read."""
    folder = cast(ModelFolder, None)
    num_blocks = (cache_gib << 10) // (16 * len(spec.stages))
    settings = EngineSettings(1, 64, block_size=16, num_blocks=num_blocks)
    helper = None if assistant is None else OpenedFolder(folder, assistant)
    live = PreparedAdapters(live=adapters)
    return EngineSetup(model, runtime, OpenedFolder(folder, spec), helper, None, (), settings, live)


def fault(
    stages: list[int],
    cache_gib: int,
    assistant: Sizes | None = None,
    adapters: FittedAdapters | None = None,
    **options: Any,
) -> str:
    """Why so many GiB of cache for each process are refused; empty where they are not."""
    device, kernels = options.pop("device", "CPU"), options.pop("kernels", "reference")
    runtime = RuntimeConfig(cache_memory=f"{cache_gib}GiB", device_target=device, kernels=kernels)
    setup = setup_of(ModelConfig(), runtime, SPEC, cache_gib, assistant, adapters)
    try:
        refuse_beyond_memory(MemoryDemand(setup, stages, **options))
    except ConfigError as error:
        [line] = error.lines
        return line
    return ""


def test_adapters_count() -> None:
    """Each takes 0.5 GiB on the first stage, and 1 on the second."""
    adapters = FittedAdapters({}, 4, (1 << 27, 1 << 28))
    assert fault([0], 5, adapters=adapters) == "", "1 of weights, 2 of adapters"
    assert fault([0, 1], 1, adapters=adapters) == (
        "memory: 2 processes need 11.0 GiB, 3.0 GiB of weights in float32, 6.0 GiB of adapters and 2.0 GiB "
        "of runtime.cache_memory, and this machine has 8.0 GiB, 5.0 GiB of them free; try: "
        "lora.max_loaded of at most 2, or more of parallel.model_parallel or parallel.pipeline_stage over "
        "more machines"
    )
    assert fault([0], 6, adapters=adapters).endswith(
        "try: lora.max_loaded of at most 2, or runtime.cache_memory of at most 5120MiB, or more of "
        "parallel.model_parallel or parallel.pipeline_stage over more machines"
    )
    assert "lora.max_loaded" not in fault([1], 6, adapters=adapters), "not even one fits"
    assert fault([0, 1], 1, device="Ascend", adapters=adapters) == ""


def test_rows_of_experts_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """What 512 tokens of a step take, in each process."""
    monkeypatch.setattr(f"{__name__}.SPEC", replace(SPEC, expert_numbers=1 << 19))
    assert fault([0], 6) == ""
    assert fault([0], 7) == (
        "memory: the model needs 9.0 GiB, 1.0 GiB of weights in float32, 1.0 GiB of experts' rows in a step "
        "and 7.0 GiB of runtime.cache_memory, and this machine has 8.0 GiB, 5.0 GiB of them free; try: "
        "runtime.cache_memory of at most 6144MiB, or more of parallel.model_parallel or "
        "parallel.pipeline_stage over more machines, or fewer than 512 of runtime.max_batched_tokens"
    )
    assert fault([0], 7, device="Ascend") == ""


def test_what_fits_is_taken() -> None:
    assert fault([0, 1], 2) == ""  # 3 of weights and 2 x 2
    assert fault([0, 0, 1, 1], 0) == ""
    assert fault([], 7) == "", "what runs elsewhere is nobody's here"


def test_weights_and_caches_beyond_the_memory() -> None:
    assert fault([0, 1, 0, 1], 1, replicas=2) == (
        "memory: 4 processes need 10.0 GiB, 6.0 GiB of weights in float32 and 4.0 GiB of "
        "runtime.cache_memory, and this machine has 8.0 GiB, 5.0 GiB of them free; try: "
        "runtime.cache_memory of at most 512MiB, or fewer than 2 replicas on one machine "
        "(parallel.data_parallel), or more of parallel.model_parallel or "
        "parallel.pipeline_stage over more machines"
    )


def test_weights_alone_beyond_the_memory() -> None:
    line = fault([1, 1, 1, 1, 1], 0)
    assert line.startswith(
        "memory: 5 processes need 10.0 GiB, 10.0 GiB of weights in float32 and 0 bytes of runtime.cache"
    )
    assert line.endswith("try: more of parallel.model_parallel or parallel.pipeline_stage over more machines")


def test_caches_alone_beyond_the_memory_are_told_as_such() -> None:
    assert fault([0, 1], 5).startswith(
        "runtime.cache_memory=5GiB for each of 2 processes: more than the 8.0 GiB"
    )


def test_weights_on_a_device_take_no_memory_of_the_machine() -> None:
    assert fault([1, 1, 1, 1, 1], 0, device="Ascend") == ""


NUMBERS = 8_030_261_248
"""Of a model of 8 billion parameters."""


def fault_of_8b(machine_gib: int, **options: Any) -> str:
    """Why a machine does not hold them with 1 GiB of cache; which remedies it names."""
    spec = sizes((NUMBERS,), 1 << 18)
    demand = MemoryDemand(setup_of(ModelConfig(**options), RuntimeConfig(), spec, 1))
    return (demand.error(MachineMemory(machine_gib * GIB, 0)) or "").partition("try: ")[2]


def test_smaller_weights_go_before_more_machines() -> None:
    """With their sizes, where they fit, and with a smaller cache where only that makes them."""
    more = "more of parallel.model_parallel or parallel.pipeline_stage over more machines"
    bfloat16, int8 = (
        "model.dtype=bfloat16 (15.0 GiB of weights)",
        "model.quantization=int8 (7.5 GiB of weights)",
    )
    assert fault_of_8b(31) == ""
    assert fault_of_8b(30) == f"{bfloat16}, or {int8}, or runtime.cache_memory of at most 86MiB, or {more}"
    assert fault_of_8b(24) == f"{bfloat16}, or {int8}, or {more}"
    smaller_cache = f"{bfloat16} with runtime.cache_memory of at most 43MiB"
    assert fault_of_8b(15) == f"{smaller_cache}, or {int8}, or {more}"
    assert fault_of_8b(12) == f"{int8}, or {more}"
    assert fault_of_8b(4) == f"{more}, fewest with {int8}"
    assert fault_of_8b(4, dtype="bfloat16") == fault_of_8b(4, quantization="int8") == more
    assert fault_of_8b(12, provider="mindformers") == more


TAKEN = (
    "the model takes 6.0 GiB, 1.0 GiB of weights in float32, 4.0 GiB of adapters and 1.0 GiB of runtime."
    "cache_memory; what takes less: model.dtype=bfloat16 (512.0 MiB of weights), model.quantization=int8 "
    "(256.0 MiB of weights), runtime.cache_memory below 1GiB, lora.max_loaded below 8, "
    "runtime.max_batched_tokens below 512"
)


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")])
def test_memory_that_runs_out_is_told_with_what_takes_less(error: Exception) -> None:
    adapters = FittedAdapters({}, 8, (1 << 27, 1 << 28))
    demand = MemoryDemand(setup_of(ModelConfig(), RuntimeConfig(), SPEC, 1, adapters=adapters))
    with pytest.raises(MindBatchError) as caught, naming_exhaustion(demand, "loading"):
        raise error
    assert caught.value.lines == (f"out of memory while loading: {TAKEN}",)
    with pytest.raises(type(error)), naming_exhaustion(None, "loading"):
        raise error
    with pytest.raises(FileNotFoundError), naming_exhaustion(demand, "loading"):
        raise FileNotFoundError(errno.ENOENT, "No such file")
