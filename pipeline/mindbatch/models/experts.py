"""Mixtures of experts: what their types read from config.json in the same way, and the tensors of experts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from mindbatch.kernels.routing import Routing
from mindbatch.models import llama
from mindbatch.models.architecture import Architecture, Experts
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.stage_cut import layer_of
from mindbatch.models.tensor_spec import Layout, Part, Sharding, TensorSpec

if TYPE_CHECKING:
    from mindbatch.kernels.layer import Operation
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Block, Network

MAX_EXPERTS = 1 << 16
"""Of all layers together, above those of every published model (23,040): each is described by three parts."""


MAX_SHARED = 64
"""Networks beside the experts of a layer, above those of every published model."""


@dataclass(frozen=True)
class ExpertNames:
    """How a checkpoint names the parts of a layer of experts, behind the name of its feed-forward block.

    shared: of a network beside the experts, with {} for its number.
    """

    router: str = "gate.weight"
    correction: str = "gate.e_score_correction_bias"
    experts: str = "experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str = "shared_experts"
    shared_router: str = "shared_expert_gate.weight"


def read_routing(
    reader: ConfigReader, experts_key: str, *, is_normalised: bool, layers: Collection[int]
) -> Routing:
    """A softmax over all experts and its best; faults are left in the reader."""
    experts, chosen = reader.positive(experts_key), reader.positive("num_experts_per_tok")
    if experts * max(1, len(layers)) > MAX_EXPERTS:
        reader.fault(experts_key, f"must be at most {MAX_EXPERTS} over all layers")
        experts = 1
    if chosen > experts:
        reader.fault("num_experts_per_tok", f"must be at most {experts_key}={experts}")
        chosen = experts
    return Routing(experts, chosen, is_normalised=is_normalised)


def read_groups(reader: ConfigReader, routing: Routing, group_best: int) -> Routing:
    """The same among the experts of the best topk_group of n_group groups."""
    groups, chosen = reader.positive("n_group"), reader.positive("topk_group")
    if routing.experts % groups:
        reader.fault("n_group", f"must divide the {routing.experts} experts")
        return routing
    if chosen > groups:
        reader.fault("topk_group", f"must be at most n_group={groups}")
        return routing
    size = routing.experts // groups
    if size < group_best:
        reader.fault("n_group", f"must leave at least {group_best} experts in a group")
        return routing
    if size * chosen < routing.chosen:
        reader.fault("topk_group", f"groups must have num_experts_per_tok={routing.chosen} experts together")
    return replace(routing, groups=groups, chosen_groups=chosen, group_best=group_best)


def read_scored_experts(reader: ConfigReader, layers: int) -> Experts:
    """Sigmoids with a correction, groups, and one shared network, as DeepSeek-V3 and GLM-4.5 have them."""
    sparse = layers_behind(reader, layers)
    is_normalised = reader.flag("norm_topk_prob")
    routing = read_routing(reader, "n_routed_experts", is_normalised=is_normalised, layers=sparse)
    reader.needs("scoring_func", ["sigmoid"])
    reader.needs("topk_method", ["noaux_tc"])
    reader.needs("moe_layer_freq", [1])
    routing = replace(routing, is_sigmoid=True, scale=reader.number("routed_scaling_factor"))
    inner = reader.positive("moe_intermediate_size")
    return Experts(
        read_groups(reader, routing, group_best=2),
        inner,
        sparse,
        has_correction=True,
        shared=(inner * reader.positive("n_shared_experts"),),
    )


def layers_behind(reader: ConfigReader, layers: int) -> tuple[int, ...]:
    """All layers but the first first_k_dense_replace."""
    return tuple(range(read_count(reader, "first_k_dense_replace", layers), layers))


def read_count(reader: ConfigReader, key: str, largest: int) -> int:
    """A whole number from 0 to `largest`; a fault is left in the reader."""
    found = reader.raw(key)
    if type(found) is not int or not 0 <= found <= largest:
        reader.fault(key, f"must be a whole number from 0 to {largest}")
        return 0
    return found


def tensors(
    arch: Architecture, specs: Sequence[TensorSpec], block: str = "mlp", names: ExpertNames | None = None
) -> list[TensorSpec]:
    """The specs of a model with the same layers without experts, and experts in the layers that have them.

    block: the name of the feed-forward block in the checkpoint's layers.
    """
    experts = arch.experts
    assert experts is not None, "a type of mixtures of experts describes them"
    found = [spec for spec in specs if not (".mlp." in spec.name and layer_of(spec) in experts.layers)]
    for layer in experts.layers:
        source = f"model.layers.{layer}.{block}"
        found += _layer_tensors(arch.hidden_size, experts, source, f"layers.{layer}.experts", names)
    return found


def _layer_tensors(
    hidden: int, experts: Experts, source: str, name: str, names: ExpertNames | None
) -> list[TensorSpec]:
    names, count = names or ExpertNames(), experts.routing.experts
    each = [f"{source}.{names.experts}.{expert}" for expert in range(count)]
    specs = [
        _of_router(f"{name}.router.weight", Part(f"{source}.{names.router}", count, hidden)),
        *_matrices(name, each, (experts.intermediate_size, hidden), names, count),
    ]
    if experts.has_correction:
        specs.append(_of_router(f"{name}.router.correction", Part(f"{source}.{names.correction}", count)))
    for number, inner in enumerate(experts.shared):
        shared, its_source = f"{name}.shared.{number}", f"{source}.{names.shared.format(number)}"
        if experts.shared_is_gated:
            router = Part(f"{source}.{names.shared_router}", 1, hidden)
            specs.append(_of_router(f"{shared}.router.weight", router))
        matrices = 1 if experts.shared_is_gated else 0
        specs += _matrices(shared, [its_source], (inner, hidden), names, matrices)
    return specs


def _of_router(name: str, part: Part) -> TensorSpec:
    """In float32: what is rounded may change which experts are chosen."""
    return TensorSpec(name, (part,), layout=Layout.FLOAT32)


def _matrices(
    name: str, sources: Sequence[str], sizes: tuple[int, int], names: ExpertNames, matrices: int
) -> list[TensorSpec]:
    """Gate and up of all sources, and down. sizes: of the inside and of x."""
    inner, hidden = sizes
    up = tuple(
        Part(f"{source}.{which}.weight", inner, hidden)
        for source in sources
        for which in (names.gate, names.up)
    )
    down = tuple(Part(f"{source}.{names.down}.weight", hidden, inner) for source in sources)
    return [
        TensorSpec(f"{name}.up.weight", up, Sharding.OUTPUTS, Layout.PACKED, matrices),
        TensorSpec(f"{name}.down.weight", down, Sharding.INPUTS, Layout.PACKED, matrices),
    ]


def network(layers: Layers) -> Network:
    """Llama's network, whose feed-forward block is one of experts in some layers."""
    return layers.network(layers.embedding, block, partial(layers.rms_norm, "norm"))


def block(layers: Layers, index: int) -> Block:
    """x + attention(norm(x)), then x + experts(norm(x)), or x + mlp(norm(x))."""
    return llama.block(layers, index, feed_forward(layers, index))


def feed_forward(layers: Layers, index: int) -> Operation:
    """The experts of a layer that has any, else its MLP."""
    experts = layers.arch.experts
    if experts is None or index not in experts.layers:
        return layers.gated_mlp(f"layers.{index}.mlp")
    name = f"layers.{index}.experts"
    names = [f"{name}.shared.{number}" for number in range(len(experts.shared))]
    if experts.shared_is_gated:
        shared = [*map(layers.gated_expert, names, experts.shared)]
    else:
        shared = [*map(layers.gated_mlp, names)]
    return layers.experts(name, shared)
