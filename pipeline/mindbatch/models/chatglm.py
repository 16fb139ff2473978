"""chatglm: ChatGLM2, ChatGLM3 and the first GLM-4, as their authors' own class reads them.

The first ChatGLM is chatglm_6b.
Fused matrices: queries, keys and values one after another, gate and up one after another. Half of each head
is rotated, in pairs of neighbours. Source: the behaviour of modeling_chatglm.py in the published folders.
"""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture, Rotary
from mindbatch.architecture.tensor_spec import Part
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.rope import plain_frequencies
from mindbatch.config_json.sizes import SizeKeys, read_sizes
from mindbatch.models import ModelType, llama

KEYS = SizeKeys(
    vocab="padded_vocab_size",
    layers="num_layers",
    inner="ffn_hidden_size",
    positions="seq_length",
    epsilon="layernorm_epsilon",
    activation="",
)
NAMES = llama.LayerNames(
    "transformer.encoder.layers",
    attention="self_attention",
    output="dense",
    up=("dense_h_to_4h",),
    down="dense_4h_to_h",
    is_fused=True,
)
ENDS = (
    "transformer.embedding.word_embeddings",
    "transformer.encoder.final_layernorm",
    "transformer.output_layer",
)
THETA = 10000.0
INTERPOLATED = 16  # rope_ratio of ChatGLM2-6B-32K, whose class divides positions by it


def describe(reader: ConfigReader) -> Architecture:
    arch = read_sizes(
        reader, KEYS, head_dim=reader.positive("kv_channels"), bias=reader.flag("add_bias_linear")
    )
    # Without it, queries, keys and values are interleaved head by head.
    reader.needs("multi_query_attention", [True])
    reader.needs("post_layer_norm", [True])
    reader.needs("apply_residual_connection_post_layernorm", [False])
    reader.needs("rmsnorm", [True])
    reader.needs("original_rope", [True])
    reader.needs("quantization_bit", [0])
    reader.needs("pre_seq_len", [None])
    reader.needs("prefix_projection", [False])
    reader.needs("num_hidden_layers", [arch.num_layers])
    kv_heads = reader.positive("multi_query_group_num")
    if arch.heads % kv_heads:
        reader.error("multi_query_group_num", f"must divide num_attention_heads={arch.heads}")
    rotary, qkv_bias = _read_rotary(reader, arch.head_dim), reader.flag("add_qkv_bias") or arch.qkv_bias
    return replace(arch, kv_heads=kv_heads, rotary=rotary, qkv_bias=qkv_bias)


def _read_rotary(reader: ConfigReader, head_dim: int) -> Rotary:
    """Half of each head is rotated; rope_ratio multiplies the base of the angles, in all models but one."""
    if head_dim % 4:
        reader.error("kv_channels", "must be divisible by 4: half of a head is rotated, in pairs")
    ratio = reader.number("rope_ratio")
    theta, slower = (THETA, ratio) if ratio == INTERPOLATED else (THETA * ratio, 1.0)
    frequencies = plain_frequencies(theta, max(2, head_dim // 2)) / slower
    return Rotary(tuple(map(float, frequencies)), is_interleaved=True)


class Attention(llama.Attention):
    def projections(self, a: Architecture, source: str) -> tuple[Part, ...]:
        return llama.qkv_parts(a, f"{source}.query_key_value.weight")


class Block(llama.Block):
    names, attention_type = NAMES, Attention


MODEL = ModelType(
    describe,
    llama.with_blocks(Block, ends=ENDS),
    prefix="transformer.",
    unused_tensors=("*rotary_pos_emb.inv_freq",),
)
