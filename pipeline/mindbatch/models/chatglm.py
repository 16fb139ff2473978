"""chatglm: ChatGLM2, ChatGLM3 and the first GLM-4, as their authors' own class reads them.

The first ChatGLM is chatglm_6b.
Fused matrices: queries, keys and values one after another, gate and up one after another. Half of each head
is rotated, in pairs of neighbours. Source: the behaviour of modeling_chatglm.py in the published folders.
"""

from mindbatch.models import llama
from mindbatch.models.architecture import Architecture, Rotary
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.model_type import ModelType
from mindbatch.models.rope import plain_frequencies
from mindbatch.models.tensor_spec import Part

ENDS = (
    "transformer.embedding.word_embeddings",
    "transformer.encoder.final_layernorm",
    "transformer.output_layer",
)
THETA = 10000.0
INTERPOLATED = 16  # rope_ratio of ChatGLM2-6B-32K, whose class divides positions by it


def describe(reader: ConfigReader) -> Architecture:
    """Reads what the tensors of a `chatglm` configuration follow from; errors are left in the reader."""
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
    kv_heads = reader.positive("multi_query_group_num")
    if heads % kv_heads:
        reader.fault("multi_query_group_num", f"must divide num_attention_heads={heads}")
    bias, head_dim = reader.flag("add_bias_linear"), reader.positive("kv_channels")
    return Architecture(
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
    )


def _read_rotary(reader: ConfigReader, head_dim: int) -> Rotary:
    """Half of each head is rotated; rope_ratio multiplies the base of the angles, in all models but one."""
    if head_dim % 4:
        reader.fault("kv_channels", "must be divisible by 4: half of a head is rotated, in pairs")
    ratio = reader.number("rope_ratio")
    theta, slower = (THETA, ratio) if ratio == INTERPOLATED else (THETA * ratio, 1.0)
    frequencies = plain_frequencies(theta, max(2, head_dim // 2)) / slower
    return Rotary(tuple(map(float, frequencies)), is_interleaved=True)


class Attention(llama.Attention):
    def __init__(self, a: Architecture, source: str, layer: int) -> None:
        super().__init__(a, source, layer, "dense")

    def projections(self, a: Architecture, source: str) -> tuple[Part, ...]:
        return llama.qkv_parts(a, f"{source}.query_key_value.weight")


class Block(llama.Block):
    def __init__(self, a: Architecture, layer: int) -> None:
        source = f"transformer.encoder.layers.{layer}"
        self.attention_norm = llama.norm(a, f"{source}.input_layernorm")
        self.attention = Attention(a, f"{source}.self_attention", layer)
        self.mlp_norm = llama.norm(a, f"{source}.post_attention_layernorm")
        names = ["dense_h_to_4h"], "dense_4h_to_h"
        self.mlp = llama.Mlp(a, f"{source}.mlp", *names, is_fused=True)


MODEL = ModelType(
    describe,
    llama.with_blocks(Block, ends=ENDS),
    prefix="transformer.",
    unused_tensors=("*rotary_pos_emb.inv_freq",),
)
