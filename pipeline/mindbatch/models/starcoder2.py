"""starcoder2: Llama's attention with windows, between layer norms, and a plain MLP; biases on everything."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mindbatch.models import gpt2, llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.tensor_spec import Part, Sharding, TensorSpec, linear, norm

if TYPE_CHECKING:
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Network

# Of transformers' Starcoder2Config.
DEFAULTS = {key: value for key, value in llama.DEFAULTS.items() if key != "rms_norm_eps"} | {
    "vocab_size": 49152,
    "hidden_size": 3072,
    "intermediate_size": 12288,
    "num_hidden_layers": 30,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 4096,
    "norm_epsilon": 1e-5,
    "use_bias": True,
    "tie_word_embeddings": True,
}


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `starcoder2` configuration."""
    reader.ignore(["residual_dropout"])
    reader.needs("mlp_type", ["default"])
    reader.needs("norm_type", ["layer_norm"])
    window = 0 if reader.raw("sliding_window") is None else reader.positive("sliding_window")
    windows = (window,) * reader.positive("num_hidden_layers")
    bias = reader.flag("use_bias")
    return llama.describe_family(
        reader, windows=windows, qkv_bias=bias, output_bias=bias, mlp_bias=bias, epsilon_key="norm_epsilon"
    )


def network(layers: Layers) -> Network:
    """GPT-2's blocks between the token embedding and a last layer norm."""
    return layers.network(layers.embedding, gpt2.block, partial(layers.layer_norm, "norm"))


def tensors(arch: Architecture) -> list[TensorSpec]:
    """Llama's parameters but for the MLP, and a bias of each norm."""
    specs = [spec for spec in llama.tensors(arch) if ".mlp." not in spec.name and not _is_norm(spec)]
    specs += norm("norm", "model.norm", arch.hidden_size, "bias")
    for layer in range(arch.num_layers):
        specs += _rest_of_block(arch, f"model.layers.{layer}", f"layers.{layer}")
    return specs


def _is_norm(spec: TensorSpec) -> bool:
    return spec.name.endswith("norm.weight")


def _rest_of_block(arch: Architecture, source: str, name: str) -> list[TensorSpec]:
    hidden, inner, bias = arch.hidden_size, arch.intermediate_size, arch.mlp_bias
    up, down = (
        Part(f"{source}.mlp.c_fc.weight", inner, hidden),
        Part(f"{source}.mlp.c_proj.weight", hidden, inner),
    )
    return [
        *norm(f"{name}.attention_norm", f"{source}.input_layernorm", hidden, "bias"),
        *norm(f"{name}.mlp_norm", f"{source}.post_attention_layernorm", hidden, "bias"),
        *linear(f"{name}.mlp.up", (up,), Sharding.OUTPUTS, bias),
        *linear(f"{name}.mlp.down", (down,), Sharding.INPUTS, bias),
    ]


MODEL = replace(llama.MODEL, describe=describe, tensors=tensors, network=network, defaults=DEFAULTS)
