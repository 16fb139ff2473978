"""qwen3_moe: Qwen3's attention, and experts in all layers but those that the configuration names.

Also the base of other mixtures of experts. Of arrays: see `models.llama`.
"""

from dataclasses import dataclass, replace

from mindbatch.architecture.architecture import Architecture, Experts
from mindbatch.architecture.tensor_spec import Part
from mindbatch.config_json import experts
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.sizes import layer_numbers, requested_window
from mindbatch.kernels.shapes import Routing
from mindbatch.layers.experts import Mixture, Router
from mindbatch.layers.rank import Module, Tensor, Tokens
from mindbatch.models import llama


@dataclass(frozen=True)
class ExpertNames:
    """The checkpoint's names of the parts of a layer's experts, each below `block`."""

    block: str = "mlp"
    fused_block: str = "mlp"
    """Name of the block if the experts are in one tensor, as transformers 5 saves most types."""
    router: str = "gate.weight"
    correction: str = "gate.e_score_correction_bias"
    experts: str = "experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str = "shared_experts"
    """A network beside the experts, with {} for its number."""
    shared_router: str = "shared_expert_gate.weight"
    correction_is_row: bool = False
    """True if the correction is [1, experts]."""
    fused_is_transposed: bool = False
    """True if experts that are in one tensor have matrices [inputs, outputs]."""
    fused_correction: str = ""
    """Name of the correction if the experts are in one tensor."""


def describe(reader: ConfigReader) -> Architecture:
    layers = reader.positive("num_hidden_layers")
    arch = llama.describe_family(
        reader, windows=(requested_window(reader),) * layers, bias_key="attention_bias", qk_norm=True
    )
    return replace(arch, experts=read_experts(reader, layers))


def read_experts(reader: ConfigReader, layers: int) -> Experts:
    """Experts in every decoder_sparse_step-th layer that mlp_only_layers does not name."""
    step, plain = reader.positive("decoder_sparse_step"), layer_numbers(reader, "mlp_only_layers") or []
    sparse = tuple(layer for layer in range(layers) if (layer + 1) % step == 0 and layer not in plain)
    is_normalised = reader.flag("norm_topk_prob")
    routing = experts.read_routing(reader, "num_experts", is_normalised=is_normalised, layers=sparse)
    return Experts(routing, reader.positive("moe_intermediate_size"), sparse)


class SparseMlp(Mixture):
    """Experts, of which each row chooses some, plus the shared networks that compute every row."""

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

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        y_TH = super().forward(x_TH, tokens)
        for network in self.shared:
            y_TH = y_TH + network(x_TH, tokens)
        return y_TH


class GatedExpert(Mixture):
    """A shared network, weighted for each row with the sigmoid of its router's logit."""

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
            block = names.fused_block if a.experts.is_fused else names.block
            self.experts = SparseMlp(a, self.names.in_layer(layer, block), names)

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        x_TH = x_TH + self.attention(self.attention_norm(x_TH), tokens)
        feed_forward = self.experts if self.is_sparse else self.mlp
        return x_TH + feed_forward(self.mlp_norm(x_TH), tokens)


MODEL = replace(llama.MODEL, describe=describe, tree=llama.with_blocks(Block))
