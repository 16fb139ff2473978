"""Mixtures of experts: what their types read from config.json in the same way, and the tensors of experts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class ExpertNames:
    """How a checkpoint names the parts of a layer of experts, behind the name of its feed-forward block."""

    router: str = "gate.weight"
    correction: str = "gate.e_score_correction_bias"
    experts: str = "experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


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
    names, inner, count = names or ExpertNames(), experts.intermediate_size, experts.routing.experts
    each = [f"{source}.{names.experts}.{expert}" for expert in range(count)]
    up = tuple(
        Part(f"{expert}.{which}.weight", inner, hidden) for expert in each for which in (names.gate, names.up)
    )
    down = tuple(Part(f"{expert}.{names.down}.weight", hidden, inner) for expert in each)
    specs = [
        TensorSpec(f"{name}.router.weight", (Part(f"{source}.{names.router}", count, hidden),)),
        TensorSpec(f"{name}.up.weight", up, Sharding.OUTPUTS, Layout.PACKED, count),
        TensorSpec(f"{name}.down.weight", down, Sharding.INPUTS, Layout.PACKED, count),
    ]
    if experts.has_correction:
        specs.append(TensorSpec(f"{name}.router.correction", (Part(f"{source}.{names.correction}", count),)))
    return specs


def network(layers: Layers) -> Network:
    """Llama's network, whose feed-forward block is one of experts in some layers."""
    return layers.network(layers.embedding, block, partial(layers.rms_norm, "norm"))


def block(layers: Layers, index: int) -> Block:
    """x + attention(norm(x)), then x + experts(norm(x)), or x + mlp(norm(x))."""
    return llama.block(layers, index, feed_forward(layers, index))


def feed_forward(layers: Layers, index: int) -> Operation:
    """The experts of a layer that has any, else its MLP."""
    assert layers.arch.experts is not None
    if index in layers.arch.experts.layers:
        return layers.experts(f"layers.{index}.experts")
    return layers.gated_mlp(f"layers.{index}.mlp")
