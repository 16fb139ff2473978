"""llama: RMS norm, rotary positions, grouped key/value heads, gated MLP. Also the base of its relatives."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.model_type import ModelType
from mindbatch.models.rope import RotaryReader, read_rotary
from mindbatch.models.tensor_spec import Part, Sharding, TensorSpec, linear, norm, vocabulary

if TYPE_CHECKING:
    from mindbatch.kernels.layer import Operation
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Block, Network

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "quick_gelu": "quick_gelu",
}
# Of transformers' LlamaConfig.
DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `llama` configuration; faults are left in the reader."""
    bias = reader.flag("attention_bias")
    return describe_family(reader, qkv_bias=bias, output_bias=bias, mlp_bias=reader.flag("mlp_bias"))


def describe_family(
    reader: ConfigReader,
    *,
    default_intermediate: int | None = None,
    windows: tuple[int, ...] | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    epsilon_key: str = "rms_norm_eps",
    activation_key: str = "hidden_act",
    rotary: RotaryReader = read_rotary,
) -> Architecture:
    """What all relatives of Llama read from config.json in the same way.

    default_intermediate: the intermediate_size where that is null; None: it must not be.
    """
    hidden, layers = reader.positive("hidden_size"), reader.positive("num_hidden_layers")
    heads = reader.positive("num_attention_heads")
    kv_heads = reader.positive("num_key_value_heads", heads)
    head_dim = reader.positive("head_dim", hidden // heads or 2)
    if heads % kv_heads:
        reader.fault("num_key_value_heads", f"must divide num_attention_heads={heads}")
    if head_dim % 2:
        reader.fault("head_dim", "must be even for rotary positions")
    max_positions = reader.positive("max_position_embeddings")
    return Architecture(
        model_type="llama",
        vocab_size=reader.positive("vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=reader.positive("intermediate_size", default_intermediate),
        max_positions=max_positions,
        norm_epsilon=reader.number(epsilon_key),
        activation=reader.choice(activation_key, ACTIVATIONS),
        tied=reader.flag("tie_word_embeddings"),
        rotary=rotary(reader, head_dim, max_positions),
        windows=windows or (0,) * layers,
        attention_scales=(head_dim**-0.5,) * layers,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
    )


def network(layers: Layers) -> Network:
    """Blocks between the token embedding and a last RMS norm; positions enter by rotation alone."""
    return layers.network(layers.embedding, block, partial(layers.rms_norm, "norm"))


def block(layers: Layers, index: int, mlp: Operation | None = None) -> Block:
    """x + attention(norm(x)), then x + mlp(norm(x)). mlp: None for the plain gated one."""
    name = f"layers.{index}"
    return layers.block(
        layers.rms_norm(f"{name}.attention_norm"),
        layers.attention(f"{name}.attention", index),
        layers.rms_norm(f"{name}.mlp_norm"),
        layers.gated_mlp(f"{name}.mlp") if mlp is None else mlp,
    )


def tensors(arch: Architecture) -> list[TensorSpec]:
    """Every parameter and the checkpoint tensors it is made of."""
    hidden = arch.hidden_size
    specs = [
        vocabulary("embedding.weight", "model.embed_tokens.weight", arch.vocab_size, hidden),
        *norm("norm", "model.norm", hidden),
    ]
    if not arch.tied:
        specs.append(vocabulary("head.weight", "lm_head.weight", arch.vocab_size, hidden))
    for layer in range(arch.num_layers):
        specs += _block_tensors(arch, f"model.layers.{layer}", f"layers.{layer}")
    return specs


def _block_tensors(arch: Architecture, source: str, name: str) -> list[TensorSpec]:
    hidden, inner, size = arch.hidden_size, arch.intermediate_size, arch.head_dim
    attention, heads = f"{source}.self_attn", {"q": arch.heads, "k": arch.kv_heads, "v": arch.kv_heads}
    qkv = tuple(
        Part(f"{attention}.{which}_proj.weight", count * size, hidden, unit=size, is_shared=which != "q")
        for which, count in heads.items()
    )
    output = (Part(f"{attention}.o_proj.weight", hidden, arch.heads * size),)
    up = tuple(Part(f"{source}.mlp.{which}_proj.weight", inner, hidden) for which in ("gate", "up"))
    down = (Part(f"{source}.mlp.down_proj.weight", hidden, inner),)
    return [
        *norm(f"{name}.attention_norm", f"{source}.input_layernorm", hidden),
        *(norm(f"{name}.attention.q_norm", f"{attention}.q_norm", size) if arch.qk_norm else ()),
        *(norm(f"{name}.attention.k_norm", f"{attention}.k_norm", size) if arch.qk_norm else ()),
        *linear(f"{name}.attention.qkv", qkv, Sharding.OUTPUTS, arch.qkv_bias),
        *linear(f"{name}.attention.output", output, Sharding.INPUTS, arch.output_bias),
        *norm(f"{name}.mlp_norm", f"{source}.post_attention_layernorm", hidden),
        *linear(f"{name}.mlp.up", up, Sharding.OUTPUTS, arch.mlp_bias),
        *linear(f"{name}.mlp.down", down, Sharding.INPUTS, arch.mlp_bias),
    ]


MODEL = ModelType(
    describe, tensors, network, DEFAULTS, prefix="model.", unused_tensors=("*rotary_emb.inv_freq",)
)
