"""Mixtures of experts: what their types read from config.json in the same way, and the tensors of experts."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from mindbatch.kernels.shapes import Routing
from mindbatch.layers.experts import Mixture, Router
from mindbatch.layers.rank import Module, Tokens
from mindbatch.models import llama
from mindbatch.models.architecture import Architecture, Experts
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.tensor_spec import Part

MAX_EXPERTS = 1 << 16
"""Most experts in all layers, above those of every published model (23,040): three parts describe each."""


MAX_SHARED = 64
"""Networks beside the experts of a layer, above those of every published model."""


@dataclass(frozen=True)
class ExpertNames:
    """Names, in a checkpoint, of the parts of a layer of experts, behind the name of its feed-forward block.

    shared: of a network beside the experts, with {} for its number. correction_is_row: it is [1, experts].
    fused_correction: its name where the experts are in one tensor; empty where it is the same.
    """

    router: str = "gate.weight"
    correction: str = "gate.e_score_correction_bias"
    experts: str = "experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str = "shared_experts"
    shared_router: str = "shared_expert_gate.weight"
    correction_is_row: bool = False
    fused_correction: str = ""


def read_routing(
    reader: ConfigReader,
    experts_key: str,
    chosen_key: str = "num_experts_per_tok",
    *,
    is_normalised: bool,
    layers: Collection[int],
) -> Routing:
    """A softmax over all experts and its best; faults are left in the reader."""
    experts, chosen = reader.positive(experts_key), reader.positive(chosen_key)
    if experts * max(1, len(layers)) > MAX_EXPERTS:
        reader.fault(experts_key, f"must be at most {MAX_EXPERTS} over all layers")
        experts = 1
    if chosen > experts:
        reader.fault(chosen_key, f"must be at most {experts_key}={experts}")
        chosen = experts
    return Routing(experts, chosen, is_normalised=is_normalised)


def read_groups(reader: ConfigReader, routing: Routing, group_best: int) -> Routing:
    """Restricts a routing to the experts of the best topk_group of n_group groups."""
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
    """Numbers of the layers behind the first first_k_dense_replace."""
    return tuple(range(read_count(reader, "first_k_dense_replace", layers), layers))


def read_further_layers(reader: ConfigReader) -> int:
    """Layers behind the last one, which predict further tokens."""
    key = "num_nextn_predict_layers"
    return 0 if reader.raw(key) is None else read_count(reader, key, MAX_SHARED)


def read_count(reader: ConfigReader, key: str, largest: int) -> int:
    """A whole number from 0 to `largest`; a fault is left in the reader."""
    count = reader.raw(key)
    if type(count) is not int or not 0 <= count <= largest:
        reader.fault(key, f"must be a whole number from 0 to {largest}")
        return 0
    return count


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
        super().__init__(router, settings.routing, settings.intermediate_size, a.activation)
        if settings.is_fused:
            self.stack_fused(f"{source}.{names.experts}", settings.routing.experts, a.hidden_size)
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
    """x + attention(norm(x)), then x + experts(norm(x)), or x + mlp(norm(x)).

    names, below: of the experts in the checkpoint, and of the feed-forward block of its layers; that is mlp
        in every type where the experts are in one tensor, as transformers 5 alone saves them.
    """

    names = ExpertNames()
    below = "mlp"
    experts: Module

    def __init__(self, a: Architecture, layer: int) -> None:
        super().__init__(a, layer)
        self.is_sparse = a.experts is not None and layer in a.experts.layers
        if self.is_sparse:
            assert a.experts is not None
            del self.mlp
            below = Block.below if a.experts.is_fused else self.below
            self.experts = SparseMlp(a, f"model.layers.{layer}.{below}", self.names)

    def forward(self, x_TH: Any, tokens: Tokens) -> Any:
        x_TH = x_TH + self.attention(self.attention_norm(x_TH), tokens)
        feed_forward = self.experts if self.is_sparse else self.mlp
        return x_TH + feed_forward(self.mlp_norm(x_TH), tokens)
