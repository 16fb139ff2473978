"""One rank of a model without its weights, whoever computes it: what the simulation of Ascend compiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from mindbatch.config.lora_schema import LoraConfig
from mindbatch.loading.prepared_adapters import open_adapters
from mindbatch.models import native
from mindbatch.models.adapter_weights import FittedAdapters
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import IgnoredKeys
from mindbatch.models.model_spec import ModelSpec
from mindbatch.models.no_weights import NoWeights, sources_of_layers, with_layers
from mindbatch.models.registry import describe, tensor_specs
from mindbatch.parallel.topology import RankPart, Stage

if TYPE_CHECKING:  # in the simulating process alone
    from mindbatch.kernels.interface import Kernels
    from mindbatch.kernels.shapes import CacheGeometry
    from mindbatch.models.model import Model


class Weightless(NamedTuple):
    """hidden_size: of what the head takes.

    weight_bytes: "layer_bytes" of each layer and "other_bytes"; empty where the spec tells them.
    """

    model: Model
    hidden_size: int
    weight_bytes: Mapping[str, Any]


def weightless(
    todo: Mapping[str, Any], kernels: Kernels, geometry: CacheGeometry, part: RankPart
) -> Weightless:
    """The rank's network with its cache; of several ranks, `join_group` has been called.

    todo: a job of `compilation.compile_ranks`.
    """
    make = {"native": _native, "mindformers": _mindformers}[todo["network"]]
    return make(todo, kernels, geometry, part)


def import_networks(todo: Mapping[str, Any]) -> None:
    """Imports all that the ranks of a job need, once for all forks."""
    import mindbatch.engine.model_runner  # noqa: F401  MindSpore

    if todo["network"] == "mindformers":
        from mindbatch.backends.mindformers.network import import_network

        import_network(todo["config"]["model_type"])


def _native(todo: Mapping[str, Any], kernels: Kernels, geometry: CacheGeometry, part: RankPart) -> Weightless:
    """The job's layers of the rank's stage, and the job's adapters."""
    ignore, layers = IgnoredKeys(todo["ignore"]), todo["layers"][part.stage]
    whole = describe(todo["config"], todo["model_type"], todo["source"], ignore=ignore)
    arch, stage = with_layers(whole, layers), Stage(range(len(layers)), part.stage, part.stages)
    spec, adapters = ModelSpec(arch, part.shard, stage, (stage,)), _adapters(todo, whole, layers)
    model = native.load(spec, NoWeights.of(arch), kernels, geometry, adapters=adapters)
    return Weightless(model, arch.embedding_size or arch.hidden_size, {})


def _adapters(todo: Mapping[str, Any], whole: Architecture, layers: Sequence[int]) -> FittedAdapters | None:
    """The job's adapters of these layers; DoRA's norms are those of zeros."""
    lora = LoraConfig(**todo.get("lora", {}))
    if not lora.folders:
        return None
    fitted = native.fit_adapters(ModelSpec.of(whole), open_adapters(lora), lora.max_loaded)
    sample = tensor_specs(with_layers(whole, layers))
    return _of_layers(fitted, sources_of_layers(tensor_specs(whole), sample, layers))


def _of_layers(fitted: FittedAdapters, renamed: Mapping[str, str]) -> FittedAdapters:
    """Selects the modules that act on tensors of these names, and renames them."""
    kept = {
        name: replace(
            adapter, modules={renamed[at]: how for at, how in adapter.modules.items() if at in renamed}
        )
        for name, adapter in fitted.adapters.items()
    }
    return replace(fitted, adapters=kept)


def _mindformers(
    todo: Mapping[str, Any], kernels: Kernels, geometry: CacheGeometry, part: RankPart
) -> Weightless:
    from mindbatch.backends.mindformers import families
    from mindbatch.backends.mindformers.graph_kernels import compiled
    from mindbatch.backends.mindformers.network import assemble, build_network

    ignore = IgnoredKeys(todo["ignore"])
    spec = families.describe(todo["config"], todo["source"], ignore=ignore, shard=part.shard)
    of_graphs, arch = compiled(kernels), spec.architecture
    network = build_network(spec, of_graphs)
    layers = [*map(_nbytes, network.model.decoder.layers)]
    weight_bytes = {"layer_bytes": layers, "other_bytes": _nbytes(network) - sum(layers)}
    return Weightless(assemble(network, arch, of_graphs, geometry), arch.hidden_size, weight_bytes)


def _nbytes(cell: Any) -> int:
    return sum(parameter.nbytes for _, parameter in cell.parameters_and_names())
