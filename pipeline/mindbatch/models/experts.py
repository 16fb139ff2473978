"""Mixtures of experts: what their types read from config.json in the same way, and the tensors of experts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from mindbatch.kernels.routing import Routing
from mindbatch.layers.parameters import ColumnLinear, ExpertLinears, Module, RmsNorm, Router, RowLinear
from mindbatch.models import llama
from mindbatch.models.architecture import Architecture, Experts
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.tensor_spec import Part, Sharding

if TYPE_CHECKING:
    from mindbatch.kernels.layer import Operation
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Network

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


class Mlp(Module):
    """A gated MLP. names: of its matrices below `source`."""

    def __init__(self, source: str, inner: int, hidden: int, names: ExpertNames) -> None:
        gate_up = (Part(f"{source}.{which}.weight", inner, hidden) for which in (names.gate, names.up))
        self.up = ColumnLinear(*gate_up)
        self.down = RowLinear(Part(f"{source}.{names.down}.weight", hidden, inner))


class Mixture(Module):
    """A router, and of all experts gate and up in one stack, down in another."""

    def __init__(
        self, router: Router, sources: Sequence[str], inner: int, hidden: int, names: ExpertNames
    ) -> None:
        self.router, count = router, len(sources)
        up = [
            Part(f"{source}.{which}.weight", inner, hidden)
            for source in sources
            for which in (names.gate, names.up)
        ]
        down = [Part(f"{source}.{names.down}.weight", hidden, inner) for source in sources]
        self.up = ExpertLinears(*up, experts=count, sharding=Sharding.OUTPUTS)
        self.down = ExpertLinears(*down, experts=count, sharding=Sharding.INPUTS)


class SparseMlp(Mixture):
    """The experts of a layer, of which each row has some, and the networks that every row has besides."""

    def __init__(self, a: Architecture, source: str, names: ExpertNames) -> None:
        its, hidden = a.experts, a.hidden_size
        assert its is not None, "a type of mixtures of experts describes them"
        correction = f"{source}.{names.correction}" if its.has_correction else None
        router = Router(f"{source}.{names.router}", its.routing.experts, hidden, correction)
        experts = [f"{source}.{names.experts}.{number}" for number in range(its.routing.experts)]
        super().__init__(router, experts, its.intermediate_size, hidden, names)
        self.shared: list[Module] = []
        for number, inner in enumerate(its.shared):
            beside = f"{source}.{names.shared.format(number)}"
            if its.shared_is_gated:
                gate = Router(f"{source}.{names.shared_router}", 1, hidden)
                self.shared.append(Mixture(gate, [beside], inner, hidden, names))
            else:
                self.shared.append(Mlp(beside, inner, hidden, names))


class Block(Module):
    """x + attention(norm(x)), then x + experts(norm(x)), or x + mlp(norm(x)).

    names, below: of the experts in the checkpoint, and of the feed-forward block of its layers.
    """

    def __init__(
        self, a: Architecture, index: int, attention: Module, names: ExpertNames, below: str
    ) -> None:
        source = f"model.layers.{index}"
        self.attention_norm = RmsNorm(f"{source}.input_layernorm", a.hidden_size)
        self.attention = attention
        self.mlp_norm = RmsNorm(f"{source}.post_attention_layernorm", a.hidden_size)
        if a.experts is not None and index in a.experts.layers:
            self.experts = SparseMlp(a, f"{source}.{below}", names)
        else:
            self.mlp = llama.Mlp(a, f"{source}.mlp")


class Model(llama.Model):
    """Llama's ends around its blocks, of which some have experts."""

    names = ExpertNames()
    below = "mlp"

    def block(self, a: Architecture, index: int) -> Module:
        """The layer of an index."""
        attention = self.attention(a, f"model.layers.{index}.self_attn")
        return Block(a, index, attention, self.names, self.below)

    def attention(self, a: Architecture, source: str) -> Module:
        """The attention of a layer."""
        return llama.Attention(a, source)


def network(layers: Layers) -> Network:
    """Llama's network, whose feed-forward block is one of experts in some layers."""
    return layers.network(layers.embedding, block, partial(layers.rms_norm, "norm"))


def block(layers: Layers, index: int) -> Operation:
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
