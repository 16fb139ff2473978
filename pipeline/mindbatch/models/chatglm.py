"""chatglm (ChatGLM2, ChatGLM3, the first GLM4): what its checkpoints are cut by; MindFormers alone runs it.

Fused matrices: queries, keys and values one after another, gate and up one after another.
"""

from __future__ import annotations

from dataclasses import replace

from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.model_type import ModelType
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
    "tie_word_embeddings": False,
}

# What changes how the network computes, and neither the tensors nor how they are cut.
ONLY_COMPUTED = (
    "apply_query_key_layer_scaling",
    "apply_residual_connection_post_layernorm",
    "attention_softmax_in_fp32",
    "bias_dropout_fusion",
    "classifier_dropout",
    "fp32_residual_connection",
    "original_rope",
    "quantization_bit",
    "rmsnorm",
    "rope_ratio",
    "vocab_size",  # padded_vocab_size is what the tensors have
)


def describe(reader: ConfigReader) -> Architecture:
    """What the tensors of a `chatglm` configuration follow from; faults are left in the reader."""
    heads, layers = reader.positive("num_attention_heads"), reader.positive("num_layers")
    # Without it, queries, keys and values take turns head by head.
    reader.needs("multi_query_attention", [True])
    reader.needs("post_layer_norm", [True])
    reader.needs("pre_seq_len", [None])
    reader.needs("prefix_projection", [False])
    reader.needs("num_hidden_layers", [layers])
    reader.ignore(ONLY_COMPUTED)
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
        tied=reader.flag("tie_word_embeddings"),
        qkv_bias=reader.flag("add_qkv_bias") or bias,
        output_bias=bias,
        mlp_bias=bias,
        attention_scales=(head_dim**-0.5,) * layers,
        windows=(0,) * layers,
    )


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
        *linear(f"{name}.mlp.gate_up", gate_up, Sharding.OUTPUTS, arch.mlp_bias),
        *linear(f"{name}.mlp.down", down, Sharding.INPUTS, arch.mlp_bias),
    ]


MODEL = ModelType(
    describe,
    tensors,
    None,
    DEFAULTS,
    prefix="transformer.",
    unused_tensors=("*rotary_pos_emb.inv_freq",),
)
