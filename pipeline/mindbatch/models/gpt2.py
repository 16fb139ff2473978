"""gpt2: layer norm, learned positions, one fused query-key-value matrix, stored transposed (Conv1D)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.llama import ACTIVATIONS
from mindbatch.models.model_type import ModelType
from mindbatch.models.tensor_spec import Part, Sharding, TensorSpec, fused, linear, norm, vocabulary

if TYPE_CHECKING:
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Block, Network

# Of transformers' GPT2Config.
DEFAULTS = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "tie_word_embeddings": True,
}

# Settings of the classification head, which generation does not use.
SUMMARY_KEYS = (
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_first_dropout",
)


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `gpt2` configuration; faults are left in the reader."""
    hidden, layers, heads = reader.positive("n_embd"), reader.positive("n_layer"), reader.positive("n_head")
    if hidden % heads:
        reader.fault("n_embd", f"must be divisible by n_head={heads}")
    reader.needs("add_cross_attention", [False])
    reader.needs("is_encoder_decoder", [False])
    reader.ignore(["n_ctx", "reorder_and_upcast_attn", "is_decoder"])
    reader.ignore(SUMMARY_KEYS)
    head_dim = max(1, hidden // heads)
    scale = head_dim**-0.5 if reader.flag("scale_attn_weights") else 1.0
    by_layer = reader.flag("scale_attn_by_inverse_layer_idx")
    return Architecture(
        model_type="gpt2",
        vocab_size=reader.positive("vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        intermediate_size=reader.positive("n_inner", 4 * hidden),
        max_positions=reader.positive("n_positions"),
        norm_epsilon=reader.number("layer_norm_epsilon"),
        activation=reader.choice("activation_function", ACTIVATIONS),
        tied=reader.flag("tie_word_embeddings"),
        windows=(0,) * layers,
        attention_scales=tuple(scale / (layer + 1 if by_layer else 1) for layer in range(layers)),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
    )


def network(layers: Layers) -> Network:
    """Blocks between token and position embedding and a last layer norm."""
    norm = partial(layers.layer_norm, "norm")
    return layers.network(layers.embedding, block, norm, layers.learned_positions)


def block(layers: Layers, index: int) -> Block:
    """x + attention(norm(x)), then x + mlp(norm(x))."""
    name = f"layers.{index}"
    return layers.block(
        layers.layer_norm(f"{name}.attention_norm"),
        layers.attention(f"{name}.attention", index),
        layers.layer_norm(f"{name}.mlp_norm"),
        layers.mlp(f"{name}.mlp"),
    )


def tensors(arch: Architecture) -> list[TensorSpec]:
    """Every parameter and the checkpoint tensors it is made of."""
    hidden = arch.hidden_size
    specs = [
        vocabulary("embedding.weight", "transformer.wte.weight", arch.vocab_size, hidden),
        TensorSpec("positions.weight", (Part("transformer.wpe.weight", arch.max_positions, hidden),)),
        *norm("norm", "transformer.ln_f", hidden, "bias"),
    ]
    if not arch.tied:
        specs.append(vocabulary("head.weight", "lm_head.weight", arch.vocab_size, hidden))
    for layer in range(arch.num_layers):
        specs += _block_tensors(arch, f"transformer.h.{layer}", f"layers.{layer}")
    return specs


def _block_tensors(arch: Architecture, source: str, name: str) -> list[TensorSpec]:
    hidden, inner = arch.hidden_size, arch.intermediate_size

    def conv1d(which: str, widths: tuple[int, ...], inputs: int, unit: int = 1) -> tuple[Part, ...]:
        return fused(f"{source}.{which}.weight", widths, inputs, unit, transposed=True)

    qkv = conv1d("attn.c_attn", (hidden,) * 3, hidden, arch.head_dim)
    return [
        *norm(f"{name}.attention_norm", f"{source}.ln_1", hidden, "bias"),
        *linear(f"{name}.attention.qkv", qkv, Sharding.OUTPUTS, bias=True),
        *linear(
            f"{name}.attention.output", conv1d("attn.c_proj", (hidden,), hidden), Sharding.INPUTS, bias=True
        ),
        *norm(f"{name}.mlp_norm", f"{source}.ln_2", hidden, "bias"),
        *linear(f"{name}.mlp.up", conv1d("mlp.c_fc", (inner,), hidden), Sharding.OUTPUTS, bias=True),
        *linear(f"{name}.mlp.down", conv1d("mlp.c_proj", (hidden,), inner), Sharding.INPUTS, bias=True),
    ]


MODEL = ModelType(
    describe,
    tensors,
    network,
    DEFAULTS,
    prefix="transformer.",
    unused_tensors=("*.attn.bias", "*.attn.masked_bias"),  # causal masks of old checkpoints
)
