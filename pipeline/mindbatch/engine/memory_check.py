"""Whether the weights, adapters and caches of the processes of a machine fit into its memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mindbatch.config.memory import GIB, MachineMemory, memory_here, parse_bytes
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.engine.prepare import token_bytes_of
from mindbatch.errors import ConfigError
from mindbatch.kernels.memory import kernel_dtype, weight_type
from mindbatch.models.adapter_weights import FittedAdapters
from mindbatch.models.model_facts import ModelFacts

_MIB = 1 << 20


def refuse_beyond_memory(
    model: ModelConfig,
    runtime: RuntimeConfig,
    cache_tokens: int,
    facts: ModelFacts,
    assistant: ModelFacts | None = None,
    stages: Sequence[int] = (0,),
    replicas: int = 1,
    adapters: FittedAdapters | None = None,
    machine: MachineMemory | None = None,
) -> None:
    """ConfigError when weights, adapters and caches are larger than the memory: a part of that may be in use.

    cache_tokens: of each process. stages: the pipeline stage of each process of the machine, on a CPU, and
    how many replicas these are. machine: None is this one.
    """
    machine = machine or memory_here()
    if machine is None:
        return
    there, free, copies = machine.whole, machine.free / GIB, len(stages)
    token_bytes = token_bytes_of(model, runtime, facts, assistant)
    caches = copies * cache_tokens * token_bytes
    if caches > there:
        on = "" if machine.name is None else f" on {machine.name}"
        each = f" for each of {copies} processes" if copies > 1 else ""
        raise ConfigError(
            f"runtime.cache_memory={runtime.cache_memory}{each}: more than the {there / GIB:.1f} GiB "
            f"there are{on}, {free:.1f} GiB of them free; a token takes {token_bytes:,} bytes"
        )
    if runtime.device_target != "CPU":
        return
    weights = _weight_bytes(model, runtime, facts, assistant, stages)
    num_loaded = 0 if adapters is None else adapters.max_loaded
    slot = _slot_bytes(model, runtime, adapters, stages)
    loaded = num_loaded * slot
    experts = copies * facts.expert_bytes(runtime.max_batched_tokens, runtime.device_target)
    needed = weights + loaded + experts + caches
    if needed > there:
        name = machine.name or "this machine"
        who = f"{copies} processes need" if copies > 1 else "the model needs"
        beside = f", {loaded / GIB:.1f} of adapters" if num_loaded else ""
        beside += f", {experts / GIB:.1f} of experts' rows in a step" if experts else ""
        remedies = [*_fewer_adapters(there - weights - experts - caches, slot, num_loaded)]
        remedies += _remedies(there - weights - loaded - experts, runtime, copies, replicas)
        if experts:
            remedies.append(f"fewer than {runtime.max_batched_tokens} of runtime.max_batched_tokens")
        raise ConfigError(
            f"memory: {who} {needed / GIB:.1f} GiB, {weights / GIB:.1f} of weights"
            f"{beside} and {caches / GIB:.1f} of runtime.cache_memory, and {name} has "
            f"{there / GIB:.1f}, {free:.1f} of them free; what would do: {', or '.join(remedies)}"
        )


def _weight_bytes(
    model: ModelConfig,
    runtime: RuntimeConfig,
    facts: ModelFacts,
    assistant: ModelFacts | None,
    stages: Sequence[int],
) -> int:
    """Of the weights of processes; the assistant's are on the last stage."""
    numbers = sum(facts.rank_parameters[stage] for stage in stages if facts.rank_parameters)
    if assistant is not None and assistant.rank_parameters:
        numbers += stages.count(len(facts.rank_parameters) - 1) * assistant.rank_parameters[0]
    return numbers * weight_type(model.dtype, model.quantization, runtime.device_target).itemsize


def _slot_bytes(
    model: ModelConfig, runtime: RuntimeConfig, adapters: FittedAdapters | None, stages: Sequence[int]
) -> int:
    """Of one adapter in the memory of all processes."""
    if adapters is None:
        return 0
    numbers = sum(adapters.slot_numbers[stage] for stage in stages if adapters.slot_numbers)
    return numbers * kernel_dtype(model.dtype, runtime.device_target).itemsize


def _fewer_adapters(left: int, slot: int, num_loaded: int) -> Iterator[str]:
    """left: bytes beside weights and caches."""
    if slot and 1 <= left // slot < num_loaded:
        yield f"lora.max_loaded of at most {left // slot}"


def _remedies(left: int, runtime: RuntimeConfig, copies: int, replicas: int) -> Iterator[str]:
    """left: bytes beside weights and adapters."""
    most = left // copies // _MIB
    if most > 0 and most * _MIB < parse_bytes(runtime.cache_memory):
        yield f"runtime.cache_memory of at most {most}MiB"
    if replicas > 1:
        yield f"fewer than {replicas} replicas on one machine (parallel.data_parallel)"
    yield "more of parallel.model_parallel or parallel.pipeline_stage over more machines"
