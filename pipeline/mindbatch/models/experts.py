"""Mixtures of experts: what their types read from config.json in the same way, and their layers."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mindbatch.kernels.operations.experts import experts
from mindbatch.kernels.shapes import ExpertsShape, Routing
from mindbatch.layers.linear import reduced
from mindbatch.layers.rank import Module, Rank, Tokens, declared
from mindbatch.models import llama
from mindbatch.models.architecture import Architecture, Experts
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.tensor_spec import Layout, Part, Sharding

MAX_EXPERTS = 1 << 16
"""Most experts in all layers, above those of every published model (23,040): three parts describe each."""


MAX_SHARED = 64
"""Networks beside the experts of a layer, above those of every published model."""


@dataclass(frozen=True)
class ExpertNames:
    """Names, in a checkpoint, of the parts of a layer of experts, behind the name of its feed-forward block.

    block: that one. fused_block: where the experts are in one tensor, as transformers 5 alone saves most.
    shared: of a network beside the experts, with {} for its number. correction_is_row: it is [1, experts].
    fused_is_transposed: matrices of experts that are in one tensor are [inputs, outputs].
    fused_correction: its name where the experts are in one tensor; empty where it is the same.
    """

    block: str = "mlp"
    fused_block: str = "mlp"
    router: str = "gate.weight"
    correction: str = "gate.e_score_correction_bias"
    experts: str = "experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str = "shared_experts"
    shared_router: str = "shared_expert_gate.weight"
    correction_is_row: bool = False
    fused_is_transposed: bool = False
    fused_correction: str = ""


def read_routing(
    reader: ConfigReader,
    experts_key: str,
    chosen_key: str = "num_experts_per_tok",
    *,
    is_normalised: bool,
    layers: Collection[int],
) -> Routing:
    """A softmax over all experts and its best; errors are left in the reader."""
    experts, chosen = reader.positive(experts_key), reader.positive(chosen_key)
    if experts * max(1, len(layers)) > MAX_EXPERTS:
        reader.error(experts_key, f"must be at most {MAX_EXPERTS} over all layers")
        experts = 1
    if chosen > experts:
        reader.error(chosen_key, f"must be at most {experts_key}={experts}")
        chosen = experts
    return Routing(experts, chosen, is_normalised=is_normalised)


def read_groups(reader: ConfigReader, routing: Routing, group_best: int) -> Routing:
    """Restricts a routing to the experts of the best topk_group of n_group groups."""
    groups, chosen = reader.positive("n_group"), reader.positive("topk_group")
    if routing.experts % groups:
        reader.error("n_group", f"must divide the {routing.experts} experts")
        return routing
    if chosen > groups:
        reader.error("topk_group", f"must be at most n_group={groups}")
        return routing
    size = routing.experts // groups
    if size < group_best:
        reader.error("n_group", f"must leave at least {group_best} experts in a group")
        return routing
    if size * chosen < routing.chosen:
        reader.error("topk_group", f"groups must have num_experts_per_tok={routing.chosen} experts together")
    return replace(routing, groups=groups, chosen_groups=chosen, group_best=group_best)


def read_scored_experts(reader: ConfigReader, layers: int, sparse: tuple[int, ...] | None = None) -> Experts:
    """Sigmoids with a correction, groups, and one shared network, as DeepSeek-V3 and GLM-4.5 have them.

    sparse: the layers that have experts; by default those behind the first.
    """
    sparse = layers_behind(reader, layers) if sparse is None else sparse
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
    return tuple(range(read_count(reader, "first_k_dense_replace", layers), layers))


def read_further_layers(reader: ConfigReader) -> int:
    """Layers behind the last one, which predict further tokens."""
    key = "num_nextn_predict_layers"
    return 0 if reader.raw(key) is None else read_count(reader, key, MAX_SHARED)


def read_count(reader: ConfigReader, key: str, largest: int) -> int:
    """A whole number from 0 to `largest`; an error is left in the reader."""
    count = reader.raw(key)
    if type(count) is not int or not 0 <= count <= largest:
        reader.error(key, f"must be a whole number from 0 to {largest}")
        return 0
    return count


class Router(Module):
    """x [T, width] -> which experts compute each row. In float32: rounding may change which are chosen.

    source: the whole name of its matrix. correction: [experts] or [1, experts], added when they are chosen.
    """

    def __init__(self, source: str, experts: int, width: int, correction: Part | None = None) -> None:
        self.weight = declared(Part(source, experts, width), layout=Layout.FLOAT32)
        self.correction = None if correction is None else declared(correction, layout=Layout.FLOAT32)


class ExpertLinears(Module):
    """A matrix of each of several experts, packed one after another; each rank has a slice of every one."""

    def __init__(self, *parts: Part, experts: int, sharding: Sharding) -> None:
        self.weight = declared(*parts, sharding=sharding, layout=Layout.PACKED, matrices=experts)


class Biases(Module):
    """A vector of each expert, [experts, width], of which each rank has a slice or all; or one [experts]."""

    def __init__(self, part: Part, sharding: Sharding = Sharding.REPLICATED) -> None:
        self.bias = declared(part, sharding=sharding, layout=Layout.FLOAT32)


class Mixture(Module):
    """x [T, width] -> the weighted sum of the experts that each row chooses.

    up: gate and up of all experts, down: their other matrices. inner: of an expert, between the two.
    biases: of the router, of up and of down, or none. scales: one, of the experts' weights, or none.
    limit, weighs_inputs, has_logits: see `ExpertsShape`.
    """

    up: ExpertLinears
    down: ExpertLinears

    def __init__(
        self,
        router: Router,
        routing: Routing,
        inner: int,
        activation: str,
        limit: float = 0.0,
        *,
        weighs_inputs: bool = False,
        has_logits: bool = False,
    ) -> None:
        self.router, self.weighs_inputs, self.has_logits = router, weighs_inputs, has_logits
        self.routing, self.inner, self.activation, self.limit = routing, inner, activation, limit
        self.biases: list[Biases] = []
        self.scales: list[Biases] = []

    def stack(self, experts: Sequence[str], width: int, gate_up: Sequence[str], down: str) -> None:
        """The matrices of experts, by where their names begin; gate_up, down: how they end."""
        up = [Part(f"{expert}.{which}.weight", self.inner, width) for expert in experts for which in gate_up]
        downs = [Part(f"{expert}.{down}.weight", width, self.inner) for expert in experts]
        self.take_stacks(up, downs, len(experts))

    def stack_fused(self, source: str, count: int, width: int, *, transposed: bool = False) -> None:
        """The matrices of experts in two tensors [experts, ...]; transposed: [inputs, outputs] of each."""
        gate_up, down = f"{source}.gate_up_proj", f"{source}.down_proj"
        ups = [
            Part(gate_up, self.inner, width, first, transposed, matrix=expert)
            for expert in range(count)
            for first in (0, self.inner)
        ]
        downs = [Part(down, width, self.inner, 0, transposed, matrix=expert) for expert in range(count)]
        self.take_stacks(ups, downs, count)

    def take_stacks(self, up: Sequence[Part], down: Sequence[Part], count: int) -> None:
        """Both matrices of every expert, as parts of the checkpoint in the order of the experts."""
        self.up = ExpertLinears(*up, experts=count, sharding=Sharding.OUTPUTS)
        self.down = ExpertLinears(*down, experts=count, sharding=Sharding.INPUTS)

    def bind(self, name: str, rank: Rank) -> None:
        super().bind(name, rank)
        first, last = rank.shard.bounds(self.inner)
        has_biases = bool(self.biases or self.scales)
        settings = (self.activation, has_biases, self.limit, self.weighs_inputs, self.has_logits)
        self.shape, self.shard = ExpertsShape(self.routing, last - first, *settings), rank.shard
        added = [linear.bias for linear in self.biases] or [None] * 3
        if rank.shard.rank > 0:
            added[-1] = None  # one of the ranks adds that of the sum
        scale = self.scales[0].bias if self.scales else None
        self.added = [*added, scale] if has_biases else []

    def forward(self, x: Any, tokens: Tokens) -> Any:
        return self.routed(x, self.router.weight)

    def routed(self, x: Any, router: Any) -> Any:
        weights = (router, self.router.correction, self.up.weight, self.down.weight, *self.added)
        return reduced(experts(x, *weights, shape=self.shape), self.shard)


class SparseMlp(Mixture):
    """The experts of a layer, of which each row has some, and the networks that every row has besides."""

    def __init__(self, a: Architecture, source: str, names: ExpertNames) -> None:
        settings = a.experts
        assert settings is not None, "a type of mixtures of experts describes them"
        correction = None
        if settings.has_correction:
            own = (settings.is_fused and names.fused_correction) or names.correction
            name, count = f"{source}.{own}", settings.routing.experts
            correction = Part(name, 1, count) if names.correction_is_row else Part(name, count)
        router = Router(f"{source}.{names.router}", settings.routing.experts, a.hidden_size, correction)
        inner, weighs_inputs = settings.intermediate_size, settings.weighs_inputs
        super().__init__(router, settings.routing, inner, a.activation, weighs_inputs=weighs_inputs)
        if settings.is_fused:
            fused, count = f"{source}.{names.experts}", settings.routing.experts
            self.stack_fused(fused, count, a.hidden_size, transposed=names.fused_is_transposed)
        else:
            experts = [f"{source}.{names.experts}.{number}" for number in range(settings.routing.experts)]
            self.stack(experts, a.hidden_size, (names.gate, names.up), names.down)
        self.shared: list[Module] = []
        for number, inner in enumerate(settings.shared):
            expert = f"{source}.{names.shared.format(number)}"
            if settings.shared_is_gated:
                self.shared.append(GatedExpert(a, source, expert, inner, names))
            else:
                gate_up = (names.gate, names.up)
                self.shared.append(llama.Mlp(a, expert, gate_up, names.down, inner=inner))

    def forward(self, x_TH: Any, tokens: Tokens) -> Any:
        y_TH = super().forward(x_TH, tokens)
        for network in self.shared:
            y_TH = y_TH + network(x_TH, tokens)
        return y_TH


class GatedExpert(Mixture):
    """One expert of every row, weighted with the sigmoid of its router's logit."""

    def __init__(self, a: Architecture, source: str, expert: str, inner: int, names: ExpertNames) -> None:
        gate = Router(f"{source}.{names.shared_router}", 1, a.hidden_size)
        super().__init__(gate, Routing(1, 1, is_sigmoid=True, is_normalised=False), inner, a.activation)
        self.stack([expert], a.hidden_size, (names.gate, names.up), names.down)


class Block(llama.Block):
    """x + attention(norm(x)), then x + experts(norm(x)), or x + mlp(norm(x))."""

    expert_names = ExpertNames()
    experts: Module

    def __init__(self, a: Architecture, layer: int) -> None:
        super().__init__(a, layer)
        self.is_sparse = a.experts is not None and layer in a.experts.layers
        if self.is_sparse:
            assert a.experts is not None
            del self.mlp
            names = self.expert_names
            place = names.fused_block if a.experts.is_fused else names.block
            self.experts = SparseMlp(a, self.names.of_layer(layer, place), names)

    def forward(self, x_TH: Any, tokens: Tokens) -> Any:
        x_TH = x_TH + self.attention(self.attention_norm(x_TH), tokens)
        feed_forward = self.experts if self.is_sparse else self.mlp
        return x_TH + feed_forward(self.mlp_norm(x_TH), tokens)
