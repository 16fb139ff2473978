"""Configuration of every task that runs a model: its sections, and their checks."""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

from mindbatch.config.error_log import shown
from mindbatch.config.hub_models import hub_errors, resolve_model_paths
from mindbatch.config.launch_schema import LaunchConfig, launch_errors, resolve_launch_paths, world_size_of
from mindbatch.config.lora_schema import LoraConfig, lora_errors, resolve_lora_paths
from mindbatch.config.machine import mindformers_error, parse_bytes
from mindbatch.config.model_schema import (
    DecodingConfig,
    ModelConfig,
    ParallelConfig,
    RuntimeConfig,
    batch_error,
    ignored_keys,
)
from mindbatch.config.schema import SchemaKeys, TaskConfig, section
from mindbatch.decoding.parameter import shortest_error
from mindbatch.decoding.params import PARAMETERS, DecodingParams
from mindbatch.decoding.token_kinds import RANDOM, drawn_seed
from mindbatch.io.errors import ConfigError
from mindbatch.io.installation import is_installed, missing
from mindbatch.kernels.memory import (
    AS_STORED,
    DTYPES,
    FLOAT32,
    QUANTIZATIONS,
    cache_error,
    cache_type,
    dtype_error,
    kernel_dtype,
    quantization_error,
    weight_type,
)

SMALLEST_NPU_BLOCK = 16
SEED = "decoding.seed"


@dataclass
class ModelTaskConfig(TaskConfig):
    """The sections of every task that runs a model."""

    verbose_key: ClassVar[str] = "runtime.verbose"

    runs_model: ClassVar[bool] = True

    uses_one_decoding: ClassVar[bool] = False
    """True if `decoding` applies to all rows, so that an assistant that it does not use is an error."""

    advises_sampling: ClassVar[bool] = False
    """True if a note says that the model recommends sampling, when the run decodes greedily by default."""

    records_seed: ClassVar[bool] = False
    """True if a run's record keeps a drawn seed, so that the same command resumes with it."""

    starts_processes: ClassVar[bool] = True
    """True if the task runs the model in as many processes as `parallel` makes."""

    model: ModelConfig = section(ModelConfig)
    decoding: DecodingConfig = section(DecodingConfig)
    lora: LoraConfig = section(LoraConfig)
    parallel: ParallelConfig = section(ParallelConfig)
    launch: LaunchConfig = section(LaunchConfig)
    runtime: RuntimeConfig = section(RuntimeConfig)

    # Not annotated, as in TaskConfig.
    job = cast(Any, None)
    """The JobSetup of these ranks on this machine, once it is known; `dataclasses.replace` drops it."""

    @property
    def thread_count(self) -> int | None:
        return self.runtime.num_threads

    @property
    def is_launched(self) -> bool:
        is_plain = self.launch.launcher == "dynamic" and not self.launch.dry_run
        return self.starts_processes and (world_size_of(self.parallel) > 1 or not is_plain)

    def draw_seed(self) -> None:
        """Draws one seed for all sections with `seed=random`."""
        chosen = [
            decoding for decoding in (self.decoding, *self.variants.values()) if str(decoding.seed) == RANDOM
        ]
        if chosen:
            self.set_drawn_seed(chosen, drawn_seed())
            if not self.records_seed:
                self.notes += (f"{SEED}={self.drawn[SEED]} was drawn; it gives the same again",)

    def set_drawn_seed(self, sections: Iterable[DecodingConfig], seed: int) -> None:
        """Records a drawn seed, and sets it in the decoding sections that leave their seed to chance."""
        self.drawn = {SEED: seed}
        for decoding in sections:
            vars(decoding).update(seed=seed)

    def resolve_paths(self) -> list[str]:
        errors = resolve_model_paths(self.model)
        resolve_lora_paths(self.lora, errors)
        resolve_launch_paths(self.launch, errors)
        return errors

    def own_errors(self, keys: SchemaKeys) -> Iterable[str]:
        yield from hub_errors(self.model)
        yield from self.package_errors()
        yield from self.run_errors(keys)

    def package_errors(self) -> Iterable[str]:
        """Yields errors of packages that the run needs and that are not installed, or of another release.

        Native models on a CPU need neither MindSpore nor MindFormers.
        """
        absent = [package for package in ("mindspore", "mindformers") if not is_installed(package)]
        if self.model.provider == "mindformers" and absent:
            yield f"model.provider=mindformers: {missing(*absent)}, or use model.provider=native"
        elif self.model.provider == "mindformers" and (error := mindformers_error()):
            yield f"model.provider=mindformers: {error}; or use model.provider=native"
        if self.runtime.device_target == "Ascend" and "mindspore" in absent:
            yield f"runtime.device_target=Ascend: {missing('mindspore')}, or give runtime=cpu"

    def run_errors(self, keys: SchemaKeys) -> Iterable[str]:
        """Yields errors of running the model with these values; tasks add errors of their own sections."""
        yield from self.device_errors()
        yield from launch_errors(self.launch, self.parallel)
        yield from _runtime_errors(self.runtime, self.model)
        yield from _decoding_errors(self)
        yield from _speculation_errors(self)

    def device_errors(self) -> Iterable[str]:
        """Yields errors of running the model on this device and these ranks."""
        yield from _model_errors(self.model, self.runtime)
        yield from _reference_errors(self.model, self.runtime, self.parallel)
        yield from _parallel_errors(self.parallel, self.model)
        yield from lora_errors(self.lora)


def rounded_cache(model: ModelConfig, device_target: str) -> str | None:
    """Names the type of cached keys and values; None if it is the type that the kernels compute in."""
    cache = cache_type(model.cache_dtype, model.dtype, model.quantization, device_target)
    return None if cache == kernel_dtype(model.dtype, device_target) else cache.name


def quantization_of(model: ModelConfig, stored: str | None) -> str | None:
    """The quantization that results depend on. stored: that of the folder; None for floats."""
    return None if stored is None and model.quantization == AS_STORED else model.quantization


def kept_weights(model: ModelConfig, device_target: str) -> str:
    """Names the type of the matrices; `model.dtype=auto` depends on the device."""
    return weight_type(model.dtype, model.quantization, device_target).name


def _model_errors(model: ModelConfig, runtime: RuntimeConfig) -> Iterator[str]:
    """Checks that the device computes in the types; an unknown type or device is an error of its own key."""
    known = {
        number_type.name for types in (*DTYPES.values(), *QUANTIZATIONS.values()) for number_type in types
    }
    if (
        not {model.dtype, model.quantization or model.dtype, model.cache_dtype} <= {"auto", *known}
        or runtime.device_target not in DTYPES
    ):
        return
    of_dtype = dtype_error(model.dtype, runtime.device_target)
    errors = (
        of_dtype,
        quantization_error(model.quantization, model.dtype, runtime.device_target),
        None if of_dtype else cache_error(model.cache_dtype, model.dtype, runtime.device_target),
    )
    yield from filter(None, errors)
    if not any(errors) and runtime.device_target == "CPU":
        yield from _rounding_errors(model, runtime)


def _rounding_errors(model: ModelConfig, runtime: RuntimeConfig) -> Iterator[str]:
    """Yields errors of types that need the native kernels: all else computes in float32 on a CPU."""
    weights = weight_type(model.dtype, model.quantization, runtime.device_target)
    cache = cache_type(model.cache_dtype, model.dtype, model.quantization, runtime.device_target)
    key = "model.dtype" if model.quantization in (None, AS_STORED) else "model.quantization"
    for setting, kind in ((key, weights), ("model.cache_dtype", cache)):
        if kind == FLOAT32 or (setting == "model.cache_dtype" and model.cache_dtype == "auto"):
            continue
        if model.provider == "mindformers":
            yield (
                f"{setting}={kind.name}: not with model.provider=mindformers, which computes in float32 on a "
                "CPU; allowed: model.provider=native"
            )
        if runtime.kernels == "reference":
            yield (
                f"{setting}={kind.name}: not with runtime.kernels=reference, which compute in float32; "
                "allowed: runtime.kernels=auto, native"
            )


def _reference_errors(model: ModelConfig, runtime: RuntimeConfig, parallel: ParallelConfig) -> Iterator[str]:
    """Yields errors of models that the NumPy kernels do not compute."""
    if runtime.kernels != "reference" or runtime.device_target != "CPU":
        return
    key, allowed = "runtime.kernels=reference", "allowed: runtime.kernels=auto, native"
    if model.provider == "mindformers":
        yield f"{key}: not with model.provider=mindformers, whose networks NumPy does not compute; {allowed}"
    if max(parallel.model_parallel, parallel.pipeline_stage) > 1:
        yield f"{key}: computes a model in one process, and it is divided over several here; {allowed}"


def _runtime_errors(runtime: RuntimeConfig, model: ModelConfig) -> Iterator[str]:
    try:
        parse_bytes(runtime.cache_memory)
    except ValueError as error:
        yield f"runtime.cache_memory={shown(runtime.cache_memory)}: {error}"
    if problem := batch_error(model, runtime):
        yield problem
    if runtime.kernels != "auto" and runtime.device_target == "Ascend":
        yield (
            f"runtime.kernels={runtime.kernels}: not with runtime.device_target=Ascend, which has kernels of "
            "its own; use auto"
        )
    if runtime.instruction_set != "auto" and (
        runtime.device_target == "Ascend" or runtime.kernels == "reference"
    ):
        yield (
            f"runtime.instruction_set={runtime.instruction_set}: is for the native kernels of a CPU; use auto"
        )
    if runtime.arithmetic != "auto" and (
        runtime.device_target == "Ascend"
        or runtime.kernels == "reference"
        or runtime.instruction_set == "amx"
    ):
        yield (
            f"runtime.arithmetic={runtime.arithmetic}: is for the native kernels of a CPU, without "
            "runtime.instruction_set=amx; use auto"
        )
    if runtime.block_size < SMALLEST_NPU_BLOCK and runtime.device_target == "Ascend":
        yield (
            f"runtime.block_size={runtime.block_size}: not with runtime.device_target=Ascend, whose "
            f"operators take blocks of {SMALLEST_NPU_BLOCK} and more"
        )


def _parallel_errors(parallel: ParallelConfig, model: ModelConfig) -> Iterator[str]:
    """Yields errors of numbers of ranks that the model cannot be divided over; MindFormers checks its own."""
    of_map = [*device_map_errors(parallel)]
    yield from of_map
    sizes = (parallel.model_parallel, parallel.pipeline_stage)
    if model.provider == "mindformers" or max(sizes) == 1 or min(sizes) < 1:
        return
    # Not needed for one process.
    from mindbatch.model_spec.described_folder import architecture_if_sound, division_errors

    ignore, folder, assistant = ignored_keys(model), model.checkpoint_name_or_path, model.assistant
    if folder and (arch := architecture_if_sound(Path(folder), model.type, ignore)):
        yield from division_errors(arch, *sizes, None if of_map else parallel.layer_counts)
    # Sliced like the model, and on one stage.
    if assistant and (arch := architecture_if_sound(Path(assistant), "auto", ignore)):
        for error in division_errors(arch, parallel.model_parallel):
            yield f"model.assistant={assistant}: {error}"


def slices_in_sums(config: ModelTaskConfig) -> int:
    """The slices in whose order sums are added: 1 where their bits are those of one process."""
    model, size = config.model, config.parallel.model_parallel
    is_ours = config.runtime.device_target == "CPU" and model.provider != "mindformers"
    if size == 1 or not is_ours or not model.checkpoint_name_or_path:
        return size
    from mindbatch.checkpoint.placement.placements import sums_alike
    from mindbatch.model_spec.described_folder import architecture_if_sound
    from mindbatch.model_spec.registry import tensor_specs

    arch = architecture_if_sound(Path(model.checkpoint_name_or_path), model.type, ignored_keys(model))
    return 1 if arch is not None and sums_alike(tensor_specs(arch), size) else size


def slices_notes(size: int) -> Iterator[str]:
    """Yields a line where rows may differ from those of one process. size: see `slices_in_sums`."""
    if size > 1:
        yield (
            f"parallel.model_parallel={size}: sums over {size} slices have other last digits than those of "
            "one process; rare rows get other tokens"
        )


def device_map_errors(parallel: ParallelConfig) -> Iterator[str]:
    """Checks the form of parallel.device_map; the loader checks that it divides this model's layers.

    Elsewhere `auto` distributes a model over the devices there are. It is allowed for one process, its own.
    """
    value, stages = parallel.device_map, parallel.pipeline_stage
    if value is None:
        return
    name = f"parallel.device_map={shown(value)}"
    counts = isinstance(value, list | tuple) and all(type(count) is int and count > 0 for count in value)
    if value != "auto" and not counts:
        yield f"{name}: must be auto, a list with the number of layers of each stage, or null"
    elif counts and stages == 1:
        yield f"{name}: has no effect with parallel.pipeline_stage=1; remove it, or ask for more stages"
    elif counts and len(value) != stages:
        yield f"{name}: has {len(value)} numbers; needed is one for each of parallel.pipeline_stage={stages}"


def widest(params: DecodingParams) -> int:
    """Bounds the width of every strategy from above, without loading the strategies."""
    return max(params.num_return_sequences, params.num_beams, params.best_of or 1, params.top_k)


def _width_errors(params: DecodingParams, runtime: RuntimeConfig) -> Iterator[str]:
    """Checks that the sequences of a request, which are computed together, fit in one step."""
    if widest(params) * (1 + params.num_draft_tokens) <= max(1, runtime.max_batched_tokens):
        return
    from mindbatch.decoding.registry import strategy_for  # NumPy, which few mistakes need

    width = strategy_for(params).width(params) * (1 + params.num_draft_tokens)
    if width > runtime.max_batched_tokens:
        values = {name: getattr(params, name) for name, declared in PARAMETERS.items() if declared.widens}
        wide = [f"decoding.{name}={value}" for name, value in values.items() if value and value > 1]
        yield (
            f"{', '.join(wide or [f'decoding.top_k={params.top_k}'])}: a row then has {width} tokens in a "
            f"step, for its sequences go on together; at most runtime.max_batched_tokens="
            f"{runtime.max_batched_tokens} fit: raise that or ask for fewer"
        )


def _decoding_errors(config: ModelTaskConfig) -> Iterator[str]:
    """Yields errors of the decoding parameters; an error of some variants names them."""
    variants = config.variants if config.listed_group else {"": config.decoding}
    names_by_error: dict[str, list[str]] = {}
    for name, decoding in variants.items():
        try:
            params = DecodingParams(**dataclasses.asdict(decoding))
            _refuse_constraint(params)
            errors = [*_width_errors(params, config.runtime), *_length_errors(params, config.model)]
        except ConfigError as error:
            errors = [*error.lines]
        for problem in errors:
            names_by_error.setdefault(problem, []).append(name)
    for problem, names in names_by_error.items():
        yield problem if len(names) == len(variants) else f"{', '.join(names)}: {problem}"


def _length_errors(params: DecodingParams, model: ModelConfig) -> Iterator[str]:
    """Yields an error if the shortest output is longer than the model's positions."""
    if max(params.min_length, params.min_new_tokens) == 0:
        return
    positions, folder = model.seq_length, model.checkpoint_name_or_path
    if positions is None and folder is not None and model.provider == "native":
        from mindbatch.model_spec.described_folder import (
            architecture_if_sound,  # few ask for a shortest output
        )

        arch = architecture_if_sound(Path(folder), model.type, ignored_keys(model))
        positions = None if arch is None else arch.max_positions
    if positions is not None and (error := shortest_error(params, positions)):
        yield error


def _refuse_constraint(params: DecodingParams) -> None:
    """ConfigError for a regular expression or a schema that no output can follow."""
    if params.regex is None and params.json_schema is None:
        return
    from mindbatch.decoding.grammar import constraint_error  # starts processes

    if error := constraint_error(params.regex, params.json_schema):
        raise ConfigError(error)


def _speculation_errors(config: ModelTaskConfig) -> Iterator[str]:
    """Yields errors of speculative decoding. An unused assistant is none if a row of data may use it."""
    decodings = [*config.variants.values()] or [config.decoding]
    wanted = max(decoding.num_assistant_tokens for decoding in decodings)
    looked_up = max(decoding.prompt_lookup_num_tokens for decoding in decodings)
    if wanted > 0 and config.model.assistant is None:
        yield (
            f"decoding.num_assistant_tokens={wanted}: needs model.assistant, the folder of a smaller model "
            "to draft them; decoding.prompt_lookup_num_tokens needs none"
        )
    if wanted <= 0 and config.model.assistant is not None and config.uses_one_decoding:
        yield "model.assistant: has no effect with decoding.num_assistant_tokens=0; raise that or remove it"
    for name, count in (("num_assistant_tokens", wanted), ("prompt_lookup_num_tokens", looked_up)):
        if count > 0 and not config.model.use_past:
            yield f"decoding.{name}={count}: cannot go with model.use_past=false; set it to true"
