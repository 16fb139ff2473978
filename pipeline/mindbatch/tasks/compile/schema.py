"""The keys of `mindbatch compile`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from mindbatch.config.error_log import shown
from mindbatch.config.launch_schema import world_size_of
from mindbatch.config.lora_schema import lora_errors, resolve_lora_paths
from mindbatch.config.machine import GIB, parse_bytes
from mindbatch.config.model_schema import RuntimeConfig, batch_error
from mindbatch.config.model_task import device_map_errors
from mindbatch.config.schema import SchemaKeys, option, section, with_default
from mindbatch.fields import kinds as kind
from mindbatch.tasks.layout.schema import LayoutTaskConfig

RESERVE_BYTES = 4 * GIB
"""Bytes of an NPU for everything except weights and cache: driver and CANN, outputs and workspaces of a step,
and communication (two buffers of 200 MB for each group, unless HCCL_BUFFSIZE is set)."""
RESERVE = f"{RESERVE_BYTES // GIB}GiB"
ALL = "all"


@dataclass
class CompileRuntimeConfig(RuntimeConfig):
    """The device and its memory; the defaults are those of runtime=ascend."""

    device_target: str = option("Ascend", "where the model runs", kind.choice("Ascend"))
    cache_memory: str = with_default(RuntimeConfig, "cache_memory", "8GiB")
    block_size: int = with_default(RuntimeConfig, "block_size", 128)
    device_memory: str = option(
        "64GiB", f"memory of one NPU; {RESERVE} of it is for all except weights and cache"
    )


@dataclass
class CompileConfig(LayoutTaskConfig):
    """The keys of `mindbatch compile`."""

    used: ClassVar[frozenset[str]] = LayoutTaskConfig.used | {
        "layers",
        "lora.adapters",
        "lora.max_loaded",
        "model.batch_size",
        "model.seq_length",
        "parallel.device_map",
        "ranks",
        "runtime.block_size",
        "runtime.cache_memory",
        "runtime.device_memory",
        "runtime.device_target",
        "runtime.max_batched_tokens",
    }
    compiles: ClassVar[bool] = True

    ranks: Any = option(
        0,
        "ranks to compile for: one, several, or all that hold different slices",
        kind.described("rank, list of ranks or all"),
    )
    layers: str = option(
        "sample", "layers to compile: a sample that stands for all, or all", kind.choice("sample", "all")
    )
    runtime: CompileRuntimeConfig = section(CompileRuntimeConfig)

    def resolve_paths(self) -> list[str]:
        errors = super().resolve_paths()
        resolve_lora_paths(self.lora, errors)
        return errors

    def run_errors(self, keys: SchemaKeys) -> Iterable[str]:
        yield from super().run_errors(keys)
        if self.layout.dir is not None and self.parallel.device_map is not None:
            device_map = f"parallel.device_map={shown(self.parallel.device_map)}"
            yield f"{device_map}: strategy files are of even stages; remove it, or layout.dir"
        if self.parallel.pipeline_stage > 1 and self.asks_mindspore:
            from mindbatch.backends.mindformers.families import stages_error

            yield stages_error(self.parallel.pipeline_stage)
        yield from device_map_errors(self.parallel)
        if problem := batch_error(self.model, self.runtime):
            yield problem
        yield from _memory_errors(self.runtime)
        yield from _rank_errors(self.ranks, world_size_of(self.parallel))
        yield from lora_errors(self.lora)


def _memory_errors(runtime: CompileRuntimeConfig) -> Iterator[str]:
    for name in ("cache_memory", "device_memory"):
        text = getattr(runtime, name)
        try:
            size = parse_bytes(text)
        except ValueError as error:
            yield f"runtime.{name}={shown(text)}: {error}"
        else:
            if name == "device_memory" and size <= RESERVE_BYTES:
                yield f"runtime.{name}={text}: must be above {RESERVE}, left to all but weights and cache"


def _rank_errors(ranks: Any, size: int) -> Iterator[str]:
    if ranks == ALL:
        return
    numbers = ranks if isinstance(ranks, list | tuple) else [ranks]
    good = [rank for rank in numbers if type(rank) is int and 0 <= rank < size]
    if not numbers or len(good) < len(numbers) or len({*good}) < len(good):
        yield f"ranks={shown(ranks)}: must be a rank of 0 to {size - 1}, a list of different ones, or {ALL}"
