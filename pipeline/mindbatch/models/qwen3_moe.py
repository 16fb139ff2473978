"""qwen3_moe: Qwen3's attention, and experts in all layers but those that the configuration names."""

from dataclasses import replace

from mindbatch.models import experts, llama
from mindbatch.models.architecture import Architecture, Experts
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.sizes import asked_window, layer_numbers


def describe(reader: ConfigReader) -> Architecture:
    layers = reader.positive("num_hidden_layers")
    arch = llama.describe_family(
        reader, windows=(asked_window(reader),) * layers, bias_key="attention_bias", qk_norm=True
    )
    return replace(arch, experts=read_experts(reader, layers))


def read_experts(reader: ConfigReader, layers: int) -> Experts:
    """Experts in every decoder_sparse_step-th layer that mlp_only_layers does not name."""
    step, plain = reader.positive("decoder_sparse_step"), layer_numbers(reader, "mlp_only_layers") or []
    sparse = tuple(layer for layer in range(layers) if (layer + 1) % step == 0 and layer not in plain)
    is_normalised = reader.flag("norm_topk_prob")
    routing = experts.read_routing(reader, "num_experts", is_normalised=is_normalised, layers=sparse)
    return Experts(routing, reader.positive("moe_intermediate_size"), sparse)


MODEL = replace(
    llama.MODEL,
    describe=describe,
    tree=llama.with_blocks(experts.Block),
)
