"""The provider `native`: models that this project's own layers compute, from a folder to memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mindbatch.architecture.stage_cut import even_in_time
from mindbatch.architecture.tensor_spec import shard_specs
from mindbatch.checkpoint.error_lines import raise_if_any
from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, has_file, read_config
from mindbatch.checkpoint.folders.model_folder import ModelFolder, StoredWeights, has_weights
from mindbatch.checkpoint.folders.resharded import copied_tensors, noted_settings, reshard_command
from mindbatch.checkpoint.folders.weight_files import rank_folders
from mindbatch.checkpoint.formats.gguf import POINTER
from mindbatch.config_json.foreign_models import is_described
from mindbatch.config_json.forms import Config
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.model_spec.described_folder import as_stored, check_division, check_tensors, checkpoint_names
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import declaration, describe, tensor_specs
from mindbatch.parallel.topology import WHOLE, RankPart

if TYPE_CHECKING:
    from mindbatch.architecture.architecture import Architecture
    from mindbatch.backends.adapter_weights import FittedAdapters
    from mindbatch.backends.model import Model
    from mindbatch.checkpoint.folders.tensor_set import TensorSet
    from mindbatch.checkpoint.lora.adapter import LoraAdapter
    from mindbatch.checkpoint.lora.merge import MergedWeights
    from mindbatch.config_json.reader import IgnoredKeys
    from mindbatch.kernels.interface import Kernels
    from mindbatch.kernels.shapes import CacheGeometry

_ONE_HOST = (
    "the ranks of a model on a CPU exchange data in the memory of one host, or through MPI, and compute with "
    "runtime.kernels=native; allowed besides: replicas on several hosts (parallel.data_parallel), and Ascend"
)


def open_folder(
    home: Path, model_type: str, ignore: IgnoredKeys, part: RankPart
) -> tuple[ModelFolder, ModelSpec]:
    source, config, arch = str(home / CONFIG_NAME), None, None
    with suppress(CheckpointError):  # ModelFolder says it, with what is wrong with the weights
        config = read_config(home)
    # Before the weights: those of a model that is not run may be of any form.
    if config is not None and "model_type" in config:
        arch = describe(config, model_type, source, ignore=ignore)
        check_division(arch, part.shard.size, part.stages, part.device_map)
    folder = _folder_of(home, part, config or {}, ignore, arch)
    if arch is None or folder.config != config:
        arch = describe(folder.config, model_type, source, ignore=ignore)
    arch = as_stored(arch, folder)
    check_division(arch, part.shard.size, part.stages, part.device_map)
    is_whole = folder.stages == 1 and part.device_map is None
    device_map = even_in_time(tensor_specs(arch), part.stages) if is_whole else part.device_map
    spec = ModelSpec.of(arch, part, device_map)
    stored = spec.stage_parameters if folder.stages > 1 else spec.parameters
    with _naming_reshard(folder):
        check_tensors(arch, stored if folder.shard == WHOLE else shard_specs(stored, part.shard), folder)
    return folder, spec


@contextmanager
def _naming_reshard(folder: ModelFolder) -> Iterator[None]:
    """Adds to a CheckpointError over rank folders of another tool what makes a model of them."""
    try:
        yield
    except CheckpointError as error:
        if folder.shard == WHOLE or "model_parallel" in noted_settings(folder.path):
            raise
        raise CheckpointError(
            f"{folder.path}: rank folders that another tool has cut ({error.lines[0]}); make one model of "
            f"them: `{reshard_command(folder.path)}`"
        ) from error


def _iteration_of(home: Path, arch: Architecture) -> ModelFolder | None:
    """A Checkpoint 2.0 of MindFormers, its weights under Hugging Face's names; None where it is none."""
    from mindbatch.checkpoint.folders.iteration_files import iteration_in  # few come straight from a training

    if iteration_in(home) is None:
        return None
    from mindbatch.checkpoint.iterations.folder import IterationFolder
    from mindbatch.checkpoint.names.dialect import Options
    from mindbatch.checkpoint.names.registry import dialect, heads_of
    from mindbatch.checkpoint.names.renamed_files import by_strategy

    rules = dialect(arch.model_type, Options(num_layers=arch.num_layers, is_mcore=True))
    return IterationFolder(home, partial(by_strategy, rules, heads_of(arch)))


def _first_copy(home: Path, tensors: TensorSet, arch: Architecture | None) -> ModelFolder:
    """The model of rank folders that hold copies of it, with Hugging Face's names or MindFormers'."""
    from mindbatch.checkpoint.folders.renamed_folder import RenamedFolder  # as above
    from mindbatch.checkpoint.names.dialect import Options
    from mindbatch.checkpoint.names.registry import detected_options, dialect, has_mindformers_names, heads_of
    from mindbatch.checkpoint.names.renamed_files import to_huggingface
    from mindbatch.checkpoint.placement.regions import RankFiles, as_rank_files, whole_placements

    def located() -> RankFiles:
        if arch is None or not has_mindformers_names(arch.model_type, tensors.names):
            return as_rank_files(whole_placements(tensors.shapes), 1)
        options = detected_options(arch.model_type, tensors.names, Options(num_layers=arch.num_layers))
        return to_huggingface(dialect(arch.model_type, options), tensors.shapes, heads_of(arch))

    note = f"{home}: its rank folders hold copies of one checkpoint; the first is read"
    return RenamedFolder(home, [tensors], located, note)


def _folder_of(
    home: Path, part: RankPart, config: Config, ignore: IgnoredKeys, arch: Architecture | None
) -> ModelFolder:
    """A whole folder, or the rank's of those that were cut for such ranks."""
    if has_file(home, POINTER):
        from mindbatch.checkpoint.gguf.unpacked import open_home  # few models are in files of llama.cpp

        return open_home(home)
    if not has_weights(home) and (copied := copied_tensors(home)) is not None:
        return _first_copy(home, copied, arch)
    if has_weights(home) or not rank_folders(home):
        if arch is not None and not has_weights(home) and (folder := _iteration_of(home, arch)):
            return folder
        if not is_described(home, config):
            return ModelFolder(home)
        from mindbatch.config_json.quantisation import open_whole  # most weights are floats

        return open_whole(home, config, ignore.names)
    if part.stages > 1 and part.device_map is not None:
        value = part.device_map if isinstance(part.device_map, str) else [*part.device_map]
        raise ConfigError(
            f"parallel.device_map={value}: {home} was cut into even stages before; remove it, or give the "
            "folder of the whole model"
        )
    return ModelFolder(home, part.shard, stage=part.stage, stages=part.stages)


def fit_adapters(
    spec: ModelSpec, adapters: Mapping[str, LoraAdapter], max_loaded: int | None = None
) -> FittedAdapters:
    """Fits adapters to the model; they may have any names for the weights."""
    # Most jobs have no adapters.
    from mindbatch.backends.adapter_weights import embedding_of, fit_beside, rank_targets
    from mindbatch.backends.merged_adapter import base_tensors

    arch, specs = spec.architecture, spec.parameters
    # PEFT adapts one user of a tensor that several have: that of T5's embedding is in neither stack.
    only_mergeable = () if arch.encoder is None else (embedding_of(specs),)
    fitted = fit_beside(specs, adapters, base_tensors(arch), max_loaded, only_mergeable)
    if arch.encoder is not None and arch.tied:
        raise_if_any([*_offset_errors(fitted)])
    by_stage = (rank_targets(specs, fitted, spec.shard, stage) for stage in spec.stages)
    largest = (max(map(targets.numbers, fitted.adapters.values())) for targets in by_stage)
    return replace(fitted, slot_numbers=tuple(largest))


def _offset_errors(fitted: FittedAdapters) -> Iterator[str]:
    """T5 scales what its tied head takes in, ours what it gives: a bias would be scaled too."""
    from mindbatch.backends.adapter_weights import TIED_HEAD

    for name, adapter in fitted.adapters.items():
        if TIED_HEAD in adapter.modules and adapter.modules[TIED_HEAD].has_bias:
            yield f"lora.adapters.{name}: a bias of the head's adapter (lora_bias) is not supported beside T5"


def merge(spec: ModelSpec, folder: ModelFolder, adapter: LoraAdapter) -> MergedWeights:
    from mindbatch.backends.merged_adapter import merge_native

    return merge_native(spec.architecture, folder, adapter)


def load(
    spec: ModelSpec,
    weights: StoredWeights,
    kernels: Kernels,
    geometry: CacheGeometry,
    progress: Callable[[int, int], None] | None = None,
    adapters: FittedAdapters | None = None,
) -> Model:
    from mindbatch.backends.loader import load_weights
    from mindbatch.backends.model import Model
    from mindbatch.kernels.interface import ProgramKernels, allocate
    from mindbatch.layers.attention import attention_shape, layer_shapes
    from mindbatch.layers.decoder import recordings_of
    from mindbatch.layers.rank import Rank

    arch, shard, stage = spec.architecture, spec.shard, spec.stage
    if isinstance(kernels, ProgramKernels):
        if not kernels.can_run(shard, stage):
            raise ConfigError(f"runtime.kernels={kernels.name}: {_ONE_HOST}")
    elif arch.two_positions is not None:
        # Tokens of a prompt see those behind them, which operators over whole sequences do not.
        kernels = kernels.for_single_tokens()
    parameters = load_weights(spec, weights, kernels, progress)
    bank = None
    if adapters is not None:
        from mindbatch.backends.adapter_weights import rank_targets
        from mindbatch.backends.model import AdapterBank

        targets = rank_targets(spec.parameters, adapters, shard, stage)
        bank = AdapterBank(adapters, targets, (weights, checkpoint_names(arch, weights.names)), kernels)
        parameters = replace(parameters, adapted=bank.parameters)
    shapes = [layer_shapes(arch, layer, shard) for layer in stage.layers]
    cache = allocate(shapes, geometry, kernels)
    tree = declaration(arch.model_type).tree(arch)
    tree.bind("", Rank(parameters, kernels, cache.layers, stage, shard))
    recordings = recordings_of(tree, adapted=bank is not None)
    heads = (attention_shape(arch, layer, shard) for layer in stage.layers)
    narrowest = min(heads, key=lambda shape: shape.window or math.inf)
    return Model(arch.vocab_size, recordings, cache, kernels, narrowest, adapters=bank)
