"""Implements the provider `mindformers`: Hugging Face folders run by MindFormers' own networks.

A folder is checked completely before MindFormers is imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mindbatch.architecture.tensor_spec import TensorSpec, source_shapes
from mindbatch.backends.adapter_weights import AdapterTargets, FittedAdapters, fit_beside, rank_targets
from mindbatch.backends.merged_adapter import planned_merge, prefix_renames
from mindbatch.backends.mindformers.families import (
    NOT_ON_ASCEND,
    PROVIDER,
    MindFormersSpec,
    describe,
    division_errors,
    family_of,
    stages_error,
)
from mindbatch.checkpoint.error_lines import raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, read_config
from mindbatch.checkpoint.folders.model_folder import ModelFolder, StoredWeights, match_tensors
from mindbatch.checkpoint.lora.adapter import LoraAdapter
from mindbatch.checkpoint.lora.merge import MergedWeights
from mindbatch.checkpoint.lora.plan import BaseTensors
from mindbatch.checkpoint.placement.regions import as_rank_files, whole_placements
from mindbatch.config_json.reader import IgnoredKeys
from mindbatch.io.errors import ConfigError
from mindbatch.io.interrupts import interruptible
from mindbatch.model_spec.described_folder import left_out_errors
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import tied_tensors, unused_tensors
from mindbatch.models.qwen3_moe import ExpertNames
from mindbatch.parallel.topology import RankPart

if TYPE_CHECKING:  # MindSpore is imported where a model is loaded
    from mindbatch.backends.model import Model
    from mindbatch.kernels.interface import Kernels
    from mindbatch.kernels.shapes import CacheGeometry


def open_folder(
    home: Path, model_type: str, ignore: IgnoredKeys, part: RankPart
) -> tuple[ModelFolder, ModelSpec]:
    if part.stages > 1:
        raise ConfigError(stages_error(part.stages))
    source, config = str(home / CONFIG_NAME), read_config(home)
    family_of(config, source, ignore)  # before the weights, whose form other families determine
    if model_type not in ("auto", config["model_type"]):
        raise ConfigError(
            f"model.type={model_type}: {source} says model_type={config['model_type']!r}, the only one "
            f"that {PROVIDER} uses; allowed: auto, {config['model_type']}"
        )
    spec = describe(config, source, ignore=ignore, shard=part.shard)
    if errors := [*division_errors(spec.architecture, part.shard.size)]:
        raise ConfigError(errors)
    folder, arch = ModelFolder(home), spec.architecture
    try:
        shapes = source_shapes(spec.parameters)
        raise_if_any([*match_tensors(shapes, folder, unused_tensors(arch)), *_dtype_errors(folder)])
        raise_if_any([*left_out_errors(tied_tensors(arch), folder)])
    except BaseException:
        folder.close()
        raise
    return folder, spec


def _dtype_errors(folder: ModelFolder) -> Iterator[str]:
    """Yields an error if tensors differ in type, except the router's correction, which is always float32."""
    first: dict[str, str] = {}
    for name in folder.names:
        if not name.endswith(ExpertNames.correction):
            first.setdefault(folder.info(name).dtype, name)
    if len(first) > 1:
        types = ", ".join(f"{dtype} ({shown(name)})" for dtype, name in sorted(first.items()))
        yield f"{folder.path}: tensors of several types: {types}; {PROVIDER} needs weights of one type"


def fit_adapters(
    spec: ModelSpec, adapters: Mapping[str, LoraAdapter], max_loaded: int | None = None
) -> FittedAdapters:
    fitted = fit_beside(adapter_specs(spec), adapters, _base_tensors(spec), max_loaded)
    largest = max(map(_targets(spec, fitted).numbers, fitted.adapters.values()))
    return replace(fitted, slot_numbers=(largest,))


def _targets(spec: ModelSpec, adapters: FittedAdapters) -> AdapterTargets:
    return rank_targets(adapter_specs(spec), adapters, spec.shard, spec.stage)


def merge(spec: ModelSpec, folder: ModelFolder, adapter: LoraAdapter) -> MergedWeights:
    base = _base_tensors(spec)
    return planned_merge(folder, adapter, base, as_rank_files(whole_placements(base.shapes), 1).ranks[0])


def _base_tensors(spec: ModelSpec) -> BaseTensors:
    """Describes the base model to adapters; none of its weights is stored as [inputs, outputs]."""
    shapes = source_shapes(spec.parameters)
    return BaseTensors(shapes, prefix_renames("model.", shapes), (), tied_tensors(spec.architecture))


def load(
    spec: ModelSpec,
    weights: StoredWeights,
    kernels: Kernels,
    geometry: CacheGeometry,
    progress: Callable[[int, int], None] | None = None,
    adapters: FittedAdapters | None = None,
) -> Model:
    assert isinstance(spec, MindFormersSpec)
    if adapters is not None and kernels.device_target == "Ascend":
        raise ConfigError(NOT_ON_ASCEND)
    with interruptible():  # computing tables makes MindSpore handle SIGINT itself
        from mindbatch.backends.mindformers.graph_kernels import compiled

        kernels = compiled(kernels)
        from mindbatch.backends.mindformers.network import assemble, build_network
        from mindbatch.backends.mindformers.weights import load_weights
        from mindbatch.backends.model import AdapterBank

        network = build_network(spec, kernels)
    load_weights(network, spec.architecture, weights, kernels, progress)
    bank = None
    if adapters is not None:
        bank = AdapterBank(adapters, _targets(spec, adapters), (weights, str), kernels)
    return assemble(network, spec.architecture, kernels, geometry, bank)


_ADAPTED = re.compile(r"(embedding|head|layers\.\d+\.(attention\.(qkv|output)|mlp\.(up|down)))\.weight")


def adapter_specs(spec: ModelSpec) -> list[TensorSpec]:
    """Returns the tensors that adapters may change: linear layers, the token embedding and the head.

    Routers, experts, compressed vectors, and a fused tensor of keys and values, which MindFormers divides by
    heads, are not among them.
    """
    return [
        parameter
        for parameter in spec.parameters
        if _ADAPTED.fullmatch(parameter.name) and not any(part.group_size for part in parameter.parts)
    ]
