"""The keys of `mindbatch plan compile=true`: which have a part in it, and what they may be together."""

from collections.abc import Iterator
from typing import Any

from mindbatch.backends.mindformers.division import stages_fault
from mindbatch.config.faults import shown
from mindbatch.config.machine import GIB, parse_bytes
from mindbatch.config.model_schema import ModelConfig, ParallelConfig, RuntimeConfig, batch_fault
from mindbatch.config.model_task import device_map_faults

RESERVE_BYTES = 4 * GIB
"""Bytes of an NPU for what is neither weights nor cache: its driver and CANN, the buffers of communication
(two of 200 MB for each group, unless HCCL_BUFFSIZE says otherwise), outputs and workspaces of a step."""
RESERVE = f"{RESERVE_BYTES // GIB}GiB"
ALL = "all"
ONLY_TO_COMPILE = ("ranks", "layers", "runtime.device_memory")
USED_TO_COMPILE = {
    *("compile", *ONLY_TO_COMPILE, "report", "layout.timeout"),
    *(
        "model.provider",
        "model.checkpoint_name_or_path",
        "model.type",
        "model.dtype",
        "model.ignore_config_keys",
    ),
    *("model.batch_size", "model.seq_length", "parallel.data_parallel", "parallel.model_parallel"),
    *(
        "parallel.pipeline_stage",
        "parallel.device_map",
        "layout.qkv_concat",
        "runtime.device_target",
        "runtime.cache_memory",
        "runtime.block_size",
    ),
    *("runtime.max_batched_tokens", "runtime.verbose"),
    *("lora.adapters", "lora.max_loaded"),
}


def compile_faults(model: ModelConfig, parallel: ParallelConfig, runtime: RuntimeConfig) -> Iterator[str]:
    """Yields validation errors that keep the model from being compiled so."""
    if runtime.device_target != "Ascend":
        yield (
            f"runtime.device_target={runtime.device_target}: compile=true compiles for Ascend; set "
            "runtime.device_target=Ascend, or runtime=ascend for larger blocks and cache, too"
        )
    if parallel.pipeline_stage > 1 and model.provider == "mindformers":
        yield stages_fault(parallel.pipeline_stage)
    yield from device_map_faults(parallel)
    if fault := batch_fault(model, runtime):
        yield fault
    try:
        parse_bytes(runtime.cache_memory)
    except ValueError as error:
        yield f"runtime.cache_memory={shown(runtime.cache_memory)}: {error}"


def device_memory_faults(text: str) -> Iterator[str]:
    """Checks that the text is an amount of memory and leaves some for weights and cache."""
    try:
        size = parse_bytes(text)
    except ValueError as error:
        yield f"runtime.device_memory={shown(text)}: {error}"
        return
    if size <= RESERVE_BYTES:
        yield (f"runtime.device_memory={text}: must be above {RESERVE}, left to all but weights and cache")


def ranks_faults(ranks: Any, parallel: ParallelConfig) -> Iterator[str]:
    """Ranks that there are not."""
    size = parallel.data_parallel * parallel.model_parallel * parallel.pipeline_stage
    if ranks == ALL:
        return
    given = ranks if isinstance(ranks, list | tuple) else [ranks]
    good = [
        rank for rank in given if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < size
    ]
    if not given or len(good) < len(given) or len({*good}) < len(good):
        yield f"ranks={shown(ranks)}: must be a rank of 0 to {size - 1}, a list of different ones, or {ALL}"


def chosen_ranks(ranks: Any, parallel: ParallelConfig) -> list[int]:
    """The ranks to compile for; ALL are those of the first copy of the model, which the others are like."""
    if ranks == ALL:
        return [*range(parallel.model_parallel * parallel.pipeline_stage)]
    return [*ranks] if isinstance(ranks, list | tuple) else [ranks]
