"""chatglm: ChatGLM2, ChatGLM3 and the first GLM-4, as their authors' own class reads them.

The first ChatGLM is chatglm_6b.
Fused matrices: queries, keys and values one after another, gate and up one after another. Half of each head
is rotated, in pairs of neighbours. Source: the behaviour of modeling_chatglm.py in the published folders.
"""

from __future__ import annotations

from dataclasses import replace

from mindbatch.models import llama
from mindbatch.models.architecture import Architecture, Rotary
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.model_type import ModelType
from mindbatch.models.rope import plain_frequencies
from mindbatch.models.tensor_spec import Part, Sharding, TensorSpec, fused, linear, norm, vocabulary

# Of ChatGLMConfig of the published models; their network ties nothing unless asked.
DEFAULTS = {
    "num_layers": 28,
    "padded_vocab_size": 65024,
    "hidden_size": 4096,
    "ffn_hidden_size": 13696,
    "kv_channels": 128,
    "num_attention_heads": 32,
    "seq_length": 2048,
    "layernorm_epsilon": 1e-5,
    "post_layer_norm": True,
    "multi_query_attention": False,
    "multi_query_group_num": 1,
    "rope_ratio": 1.0,
    "tie_word_embeddings": False,
}

# Of how half precision is rounded, of training, and what has another name here.
WITHOUT_EFFECT = (
    "apply_query_key_layer_scaling",  # divides queries by a number that multiplies the scores again
    "attention_softmax_in_fp32",
    "bias_dropout_fusion",
    "fp32_residual_connection",
    "vocab_size",  # padded_vocab_size is what the tensors have
)
THETA = 10000.0
INTERPOLATED = 16  # rope_ratio of ChatGLM2-6B-32K, whose class divides positions by it


def describe(reader: ConfigReader) -> Architecture:
    """What the tensors of a `chatglm` configuration follow from; faults are left in the reader."""
    heads, layers = reader.positive("num_attention_heads"), reader.positive("num_layers")
    # Without it, queries, keys and values take turns head by head.
    reader.needs("multi_query_attention", [True])
    reader.needs("post_layer_norm", [True])
    reader.needs("apply_residual_connection_post_layernorm", [False])
    reader.needs("rmsnorm", [True])
    reader.needs("original_rope", [True])
    reader.needs("quantization_bit", [0])
    reader.needs("pre_seq_len", [None])
    reader.needs("prefix_projection", [False])
    reader.needs("num_hidden_layers", [layers])
    reader.ignore(WITHOUT_EFFECT)
    kv_heads = reader.positive("multi_query_group_num")
    if heads % kv_heads:
        reader.fault("multi_query_group_num", f"must divide num_attention_heads={heads}")
    bias, head_dim = reader.flag("add_bias_linear"), reader.positive("kv_channels")
    return Architecture(
        model_type="chatglm",
        vocab_size=reader.positive("padded_vocab_size"),
        hidden_size=reader.positive("hidden_size"),
        num_layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=reader.positive("ffn_hidden_size"),
        max_positions=reader.positive("seq_length"),
        norm_epsilon=reader.number("layernorm_epsilon"),
        activation="silu",
        rotary=_read_rotary(reader, head_dim),
        tied=reader.flag("tie_word_embeddings"),
        qkv_bias=reader.flag("add_qkv_bias") or bias,
        output_bias=bias,
        mlp_bias=bias,
        attention_scales=(head_dim**-0.5,) * layers,
        windows=(0,) * layers,
    )


def _read_rotary(reader: ConfigReader, head_dim: int) -> Rotary:
    """Half of each head is rotated; rope_ratio multiplies the base of the angles, in all models but one."""
    if head_dim % 4:
        reader.fault("kv_channels", "must be divisible by 4: half of a head is rotated, in pairs")
    ratio = reader.number("rope_ratio")
    theta, slower = (THETA, ratio) if ratio == INTERPOLATED else (THETA * ratio, 1.0)
    frequencies = plain_frequencies(theta, max(2, head_dim // 2)) / slower
    return Rotary(tuple(map(float, frequencies)), is_interleaved=True)


def tensors(arch: Architecture) -> list[TensorSpec]:
    """Every parameter and the checkpoint tensors it is made of."""
    words, hidden = "transformer.embedding.word_embeddings.weight", arch.hidden_size
    specs = [
        vocabulary("embedding.weight", words, arch.vocab_size, hidden),
        *norm("norm", "transformer.encoder.final_layernorm", hidden),
    ]
    if not arch.tied:
        specs.append(vocabulary("head.weight", "transformer.output_layer.weight", arch.vocab_size, hidden))
    for layer in range(arch.num_layers):
        specs += _block_tensors(arch, f"transformer.encoder.layers.{layer}", f"layers.{layer}")
    return specs


def _block_tensors(arch: Architecture, source: str, name: str) -> list[TensorSpec]:
    queries, keys = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    attention, mlp = f"{source}.self_attention", f"{source}.mlp"
    hidden, inner = arch.hidden_size, arch.intermediate_size
    query, key, value = fused(
        f"{attention}.query_key_value.weight", (queries, keys, keys), hidden, arch.head_dim
    )
    qkv = (query, replace(key, is_shared=True), replace(value, is_shared=True))
    gate_up = fused(f"{mlp}.dense_h_to_4h.weight", (inner, inner), hidden)
    output = (Part(f"{attention}.dense.weight", hidden, queries),)
    down = (Part(f"{mlp}.dense_4h_to_h.weight", hidden, inner),)
    return [
        *norm(f"{name}.attention_norm", f"{source}.input_layernorm", hidden),
        *linear(f"{name}.attention.qkv", qkv, Sharding.OUTPUTS, arch.qkv_bias),
        *linear(f"{name}.attention.output", output, Sharding.INPUTS, arch.output_bias),
        *norm(f"{name}.mlp_norm", f"{source}.post_attention_layernorm", hidden),
        *linear(f"{name}.mlp.up", gate_up, Sharding.OUTPUTS, arch.mlp_bias),
        *linear(f"{name}.mlp.down", down, Sharding.INPUTS, arch.mlp_bias),
    ]


MODEL = ModelType(
    describe,
    tensors,
    llama.network,
    DEFAULTS,
    prefix="transformer.",
    unused_tensors=("*rotary_pos_emb.inv_freq",),
)
