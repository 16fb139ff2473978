"""falcon: of the first release (7B, rw) and of the second (40B, 180B, Falcon 2), rotary or with ALiBi."""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.tensor_spec import Part, interleaved
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.rope import read_rotary
from mindbatch.config_json.sizes import SizeKeys, read_sizes
from mindbatch.kernels.shapes import Alibi, alibi_slopes
from mindbatch.layers.linear import LayerNorm
from mindbatch.models import gpt_neox, llama

KEYS = SizeKeys(inner="ffn_hidden_size", inner_is_wide=True, activation="activation")
ENDS = ("transformer.word_embeddings", "transformer.ln_f", "lm_head")


def describe(reader: ConfigReader) -> Architecture:
    has_alibi = reader.flag("alibi")
    arch = read_sizes(reader, KEYS, bias=reader.flag("bias"))
    rotary = read_rotary(reader, arch.head_dim, arch.max_positions)
    if arch.head_dim % 2 and not has_alibi:
        reader.error("num_attention_heads", "must leave heads of an even size for rotary positions")
    reader.needs("apply_residual_connection_post_layernorm", [False])
    reader.needs("n_embd", [arch.hidden_size])
    alibi = Alibi(alibi_slopes(arch.heads), arch.head_dim**-0.5, is_rounded=True)
    return replace(
        arch,
        kv_heads=_kv_heads(reader, arch.heads),
        rotary=None if has_alibi else rotary,
        alibi=alibi if has_alibi else None,
        details=gpt_neox.GptNeoxDetails(reader.flag("parallel_attn"), _shares_norm(reader)),
    )


def _kv_heads(reader: ConfigReader, heads: int) -> int:
    """One for all heads with multi_query, which the second release does not look at."""
    if reader.flag("new_decoder_architecture"):
        reader.ignore(["multi_query"])
        kv_heads = reader.positive("num_kv_heads", heads)
        if heads % kv_heads:
            reader.error("num_kv_heads", f"must divide num_attention_heads={heads}")
        return kv_heads
    if reader.flag("multi_query"):
        reader.ignore(["num_kv_heads"])
        return 1
    reader.needs("num_kv_heads", [heads])
    return heads


def _shares_norm(reader: ConfigReader) -> bool:
    is_second = reader.flag("new_decoder_architecture")
    norms = reader.positive("num_ln_in_parallel_attn", 2 if is_second else 1)
    if is_second:
        reader.needs("parallel_attn", [True])
    if norms > (2 if is_second else 1):
        reader.error("num_ln_in_parallel_attn", "must be 1, or 2 with new_decoder_architecture")
    return norms == 1 and reader.flag("parallel_attn")


class Attention(gpt_neox.Attention):
    """The matrix has, for each key/value head, its query heads, the key and the value."""

    def projections(self, a: Architecture, source: str) -> tuple[Part, ...]:
        """Query, key and value; with multi_query there is one such group."""
        size, groups = a.head_dim, a.kv_heads
        group_sizes = (a.heads // groups * size, size, size)
        parts = interleaved(f"{source}.query_key_value.weight", group_sizes, groups, a.hidden_size, size)
        return parts[0], *(replace(part, is_shared=True) for part in parts[1:])


def block(a: Architecture, layer: int) -> gpt_neox.Block:
    names = replace(gpt_neox.NAMES, layers="transformer.h", attention="self_attention")
    details = a.details_of(gpt_neox.GptNeoxDetails)
    if details.is_parallel and not details.shares_norm:
        names = replace(names, attention_norm="ln_attn", mlp_norm="ln_mlp")
    return gpt_neox.block(a, layer, names, Attention)


MODEL = replace(
    gpt_neox.MODEL,
    describe=describe,
    tree=llama.with_blocks(block, LayerNorm, ENDS),
    prefix="transformer.",
    unused_tensors=("*rotary_emb.inv_freq", "*maybe_rotary.inv_freq"),
)
