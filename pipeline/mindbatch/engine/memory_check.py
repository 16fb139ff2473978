"""Whether the weights and caches of the processes of a machine fit into its memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mindbatch.config.memory import GIB, free_memory, parse_bytes, whole_memory
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.engine.prepare import token_bytes_of
from mindbatch.errors import ConfigError
from mindbatch.kernels.memory import kernel_dtype
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
) -> None:
    """ConfigError when weights or caches are larger than the whole memory: a part of that may be in use.

    cache_tokens: of each process. stages: the pipeline stage of each process of this machine, on a CPU, and
    how many replicas these are; none where processes run elsewhere.
    """
    there = whole_memory()
    if there is None:
        return
    copies = max(1, len(stages))
    token_bytes = token_bytes_of(model, runtime, facts, assistant)
    caches = copies * cache_tokens * token_bytes
    free = (free_memory() or 0) / GIB
    if caches > there:
        each = f" for each of {copies} processes" if copies > 1 else ""
        raise ConfigError(
            f"runtime.cache_memory={runtime.cache_memory}{each}: more than the {there / GIB:.1f} GiB "
            f"there are, {free:.1f} GiB of them free; a token takes {token_bytes:,} bytes"
        )
    weights = _weight_bytes(model, runtime, facts, assistant, stages)
    if runtime.device_target == "CPU" and weights + caches > there:
        who = f"{copies} processes need" if copies > 1 else "the model needs"
        remedies = ", or ".join(_remedies(there - weights, runtime, copies, replicas))
        raise ConfigError(
            f"memory: {who} {(weights + caches) / GIB:.1f} GiB, {weights / GIB:.1f} of weights and "
            f"{caches / GIB:.1f} of runtime.cache_memory, and this machine has {there / GIB:.1f}, "
            f"{free:.1f} of them free; what would do: {remedies}"
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
    return numbers * kernel_dtype(model.dtype, runtime.device_target).itemsize


def _remedies(left: int, runtime: RuntimeConfig, copies: int, replicas: int) -> Iterator[str]:
    """left: bytes beside the weights."""
    most = left // copies // _MIB
    if most > 0 and most * _MIB < parse_bytes(runtime.cache_memory):
        yield f"runtime.cache_memory of at most {most}MiB"
    if replicas > 1:
        yield f"fewer than {replicas} replicas on one machine (parallel.data_parallel)"
    yield "more of parallel.model_parallel or parallel.pipeline_stage over more machines"
