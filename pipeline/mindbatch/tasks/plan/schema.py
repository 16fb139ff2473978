"""The keys of `mindbatch plan`: those of a batch, of a layout over ranks, and of what is compiled."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from mindbatch.config.error_log import shown
from mindbatch.config.hub_models import settle_model_paths
from mindbatch.config.lora_schema import lora_errors, settle_lora_paths
from mindbatch.config.machine import GIB, parse_bytes
from mindbatch.config.model_schema import ModelConfig, ParallelConfig, RuntimeConfig, batch_error
from mindbatch.config.model_task import device_map_errors
from mindbatch.config.paths import any_path, run_folder_error, settled
from mindbatch.config.schema import SchemaKeys, option, section, value_at
from mindbatch.dataset.data_config import NO_DATA, resolve_data
from mindbatch.fields import kinds as kind
from mindbatch.run.batch_config import BatchConfig

_OR_RANKS = "; parallel.model_parallel=2, for one, plans what ranks hold, which needs no data"
MOST_RANKS = 8192
_USED = {
    "model.checkpoint_name_or_path",
    "model.ignore_config_keys",
    "model.provider",
    "model.type",
    "parallel.data_parallel",
    "parallel.model_parallel",
    "parallel.pipeline_stage",
    "report",
    "runtime.verbose",
}
_USED_WITHOUT_MINDSPORE = _USED | {"model.dtype", "layout.dir", "layout.replace"}

RESERVE_BYTES = 4 * GIB
"""Bytes of an NPU for what is neither weights nor cache: its driver and CANN, the buffers of communication
(two of 200 MB for each group, unless HCCL_BUFFSIZE says otherwise), outputs and workspaces of a step."""
RESERVE = f"{RESERVE_BYTES // GIB}GiB"
ALL = "all"
_ONLY_TO_COMPILE = ("ranks", "layers", "runtime.device_memory")
_USED_TO_COMPILE = _USED | {
    "compile",
    *_ONLY_TO_COMPILE,
    "layout.qkv_concat",
    "layout.timeout",
    "lora.adapters",
    "lora.max_loaded",
    "model.batch_size",
    "model.dtype",
    "model.seq_length",
    "parallel.device_map",
    "runtime.block_size",
    "runtime.cache_memory",
    "runtime.device_target",
    "runtime.max_batched_tokens",
}


@dataclass
class LayoutConfig:
    """The slices of a model that ranks hold; with model.provider=mindformers as MindSpore cuts it."""

    dir: str | None = option(
        None, "folder for MindSpore's strategy files, one a pipeline stage; null: none are kept", is_path=True
    )
    replace: bool = option(False, "write over strategy files that say something else")
    vocab_emb_dp: bool | None = option(
        None,
        "of MindFormers: keep embedding and head whole on every rank; null: true, as it does, and false with "
        "compile=true, whose network cuts them",
    )
    qkv_concat: bool = option(
        False, "query, key and value are one parameter, gate and up another, as the model's qkv_concat says"
    )
    timeout: int = option(600, "seconds for MindSpore's compiler", kind.count(1))


@dataclass
class PlanRuntimeConfig(RuntimeConfig):
    """The device and its memory."""

    device_memory: str = option(
        "64GiB", f"memory of one NPU; {RESERVE} of it is left to all but weights and cache"
    )


@dataclass
class PlanConfig(BatchConfig):
    """The keys of `mindbatch plan`."""

    advises_sampling: ClassVar[bool] = False
    starts_processes: ClassVar[bool] = False

    rate: float | None = option(None, "generated tokens/s to reckon with; null: no estimate of the time")
    calibrate: bool = option(False, "estimate the time by running a few of the rows, 10 s at most")
    report: str = option("text", "text or json", kind.choice("text", "json"))
    compile: bool = option(
        False,
        "compile what ranks would run on Ascend, which is simulated; needs runtime.device_target=Ascend",
    )
    ranks: Any = option(
        0,
        "ranks to compile for: one, several, or all that hold different slices",
        kind.described("rank, list of ranks or all"),
    )
    layers: str = option(
        "sample", "layers to compile: a sample that stands for all, or all", kind.choice("sample", "all")
    )
    layout: LayoutConfig = section(LayoutConfig)
    runtime: PlanRuntimeConfig = section(PlanRuntimeConfig)

    @property
    def asks_mindspore(self) -> bool:
        """True if the plan is MindSpore's layout of a MindFormers model, and nothing else."""
        return not self.compile and self.model.provider == "mindformers"

    @property
    def has_ranks(self) -> bool:
        parallel = self.parallel
        return max(parallel.data_parallel, parallel.model_parallel, parallel.pipeline_stage) > 1

    @property
    def plans_ranks(self) -> bool:
        """True if the plan says what each rank holds of a model of this project."""
        return (
            not self.compile and not self.asks_mindspore and (self.has_ranks or self.layout.dir is not None)
        )

    @property
    def needs_data(self) -> bool:
        """True if the keys of a batch have a part in the plan."""
        if self.compile or self.asks_mindspore:
            return False
        return not self.plans_ranks or self.data.path is not None

    def unused(self, name: str) -> str | None:
        return _without_effect(self, name)

    def settle_paths(self) -> list[str]:
        errors = settle_model_paths(self.model)
        if self.needs_data:
            resolve_data(self.data, errors, NO_DATA + _OR_RANKS)
            self.output.dir = settled("output.dir", self.output.dir, any_path, errors)  # nothing is written
        if self.needs_data or self.compile:
            settle_lora_paths(self.lora, errors)
        self.layout.dir = settled("layout.dir", self.layout.dir, run_folder_error, errors)
        return errors

    def package_errors(self) -> Iterable[str]:
        is_compiled = self.compile or self.asks_mindspore  # all else is arithmetic, on any laptop
        return super().package_errors() if is_compiled else ()

    def run_errors(self, keys: SchemaKeys) -> Iterable[str]:
        yield from _layout_errors(self, keys)
        if self.compile:
            yield from _compile_errors(self.model, self.parallel, self.runtime)
            yield from _device_memory_errors(self.runtime.device_memory)
            yield from _chosen_ranks_errors(self.ranks, self.parallel)
            yield from lora_errors(self.lora)
        if not self.needs_data:  # nothing is run: the rest of the keys has no part in it
            return
        yield from super().run_errors(keys)
        if self.rate is not None and not (math.isfinite(self.rate) and self.rate > 0):
            yield f"rate={shown(self.rate)}: must be above 0, in generated tokens/s"
        if self.rate is not None and self.calibrate:
            yield "rate, calibrate: only one of these can be given; calibrate=true measures the rate"
        if self.calibrate and self.has_ranks:
            yield "calibrate=true: measures one process, and parallel.* makes several; give rate, of all"


def _layout_errors(config: PlanConfig, keys: SchemaKeys) -> Iterator[str]:
    """Every error but those of single values and of paths; an option that would be ignored is one."""
    for name, key in keys.keys.items():
        value = value_at(config, name)
        if key.default == (tuple(value) if isinstance(value, list) else value):  # YAML has lists
            continue
        if name == "layout.vocab_emb_dp" and value:  # as MindFormers does unless told otherwise
            continue
        reason = _without_effect(config, name)
        if reason:
            yield f"{name}={shown(value)}: {reason}"
    yield from _rank_errors(config)
    has_run = config.compile or config.data.path is not None
    if config.layout.dir is not None and has_run and config.parallel.device_map is not None:
        device_map = shown(config.parallel.device_map)
        yield f"parallel.device_map={device_map}: strategy files are of even stages; remove it, or layout.dir"
    if config.layout.replace and config.layout.dir is None and not config.compile:
        yield "layout.replace=true: has no effect without layout.dir"


def _without_effect(config: PlanConfig, name: str) -> str | None:
    if config.compile:
        return _without_effect_to_compile(config, name)
    if name in _ONLY_TO_COMPILE:
        return "only with compile=true"
    if config.asks_mindspore:
        is_used = name in _USED or name.startswith("layout.")
        return None if is_used else "has no effect with model.provider=mindformers; remove it"
    if name.startswith("layout."):
        return None if name in _USED_WITHOUT_MINDSPORE else "only with model.provider=mindformers"
    if config.needs_data or name in _USED_WITHOUT_MINDSPORE:
        return None
    return "has no effect on what ranks hold; give data.path too, or remove it"


def _without_effect_to_compile(config: PlanConfig, name: str) -> str | None:
    """layout.dir asks for the layout beside what is compiled."""
    if name in _USED_TO_COMPILE or name == "layout.dir":
        return None
    if name.startswith("layout.") and config.layout.dir is None:
        return "has no effect with compile=true and without layout.dir; remove it"
    if name == "layout.replace" or (name == "layout.vocab_emb_dp" and config.model.provider == "mindformers"):
        return None
    return "has no effect with compile=true; remove it"


def _rank_errors(config: PlanConfig) -> Iterator[str]:
    parallel = config.parallel
    ranks = parallel.data_parallel * parallel.model_parallel * parallel.pipeline_stage
    if ranks > MOST_RANKS:
        yield (
            f"parallel: {ranks} ranks; at most {MOST_RANKS}. Copies of the model "
            "(parallel.data_parallel) hold the same slices: fewer of them say the same"
        )


def _compile_errors(model: ModelConfig, parallel: ParallelConfig, runtime: RuntimeConfig) -> Iterator[str]:
    if runtime.device_target != "Ascend":
        yield (
            f"runtime.device_target={runtime.device_target}: compile=true compiles for Ascend; set "
            "runtime.device_target=Ascend, or runtime=ascend for larger blocks and cache, too"
        )
    if parallel.pipeline_stage > 1 and model.provider == "mindformers":
        from mindbatch.backends.mindformers.families import stages_error

        yield stages_error(parallel.pipeline_stage)
    yield from device_map_errors(parallel)
    if problem := batch_error(model, runtime):
        yield problem
    try:
        parse_bytes(runtime.cache_memory)
    except ValueError as error:
        yield f"runtime.cache_memory={shown(runtime.cache_memory)}: {error}"


def _device_memory_errors(text: str) -> Iterator[str]:
    try:
        size = parse_bytes(text)
    except ValueError as error:
        yield f"runtime.device_memory={shown(text)}: {error}"
        return
    if size <= RESERVE_BYTES:
        yield (f"runtime.device_memory={text}: must be above {RESERVE}, left to all but weights and cache")


def _chosen_ranks_errors(ranks: Any, parallel: ParallelConfig) -> Iterator[str]:
    size = parallel.data_parallel * parallel.model_parallel * parallel.pipeline_stage
    if ranks == ALL:
        return
    asked = ranks if isinstance(ranks, list | tuple) else [ranks]
    good = [
        rank for rank in asked if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < size
    ]
    if not asked or len(good) < len(asked) or len({*good}) < len(good):
        yield f"ranks={shown(ranks)}: must be a rank of 0 to {size - 1}, a list of different ones, or {ALL}"
