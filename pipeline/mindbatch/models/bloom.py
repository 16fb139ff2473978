"""bloom: ALiBi, a norm of the embedding, fused heads; otherwise GPT-2's blocks."""

from dataclasses import replace
from functools import partial
from typing import Any

from mindbatch.kernels.shapes import Alibi, alibi_slopes
from mindbatch.layers.norm import LayerNorm
from mindbatch.layers.rank import Tokens
from mindbatch.models import gpt_neox, llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader

POSITIONS = 2048
"""Positions of training where `seq_length` does not say how many: ALiBi itself has no limit."""


def describe(reader: ConfigReader) -> Architecture:
    hidden_key = _either(reader, "hidden_size", "n_embed")
    heads_key = _either(reader, "n_head", "num_attention_heads")
    hidden, heads = reader.positive(hidden_key), reader.positive(heads_key)
    layers = reader.positive(_either(reader, "n_layer", "num_hidden_layers"))
    head_dim = gpt_neox.whole_heads(reader, hidden_key, hidden, heads, heads_key)
    reader.needs("n_inner", [4 * hidden])
    if reader.value("pretraining_tp") not in (None, 1):
        reader.needs("slow_but_exact", [False])  # adds up the parts of a product, and leaves out their biases
    return Architecture(
        vocab_size=reader.positive("vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        heads=heads,
        head_dim=head_dim,
        intermediate_size=4 * hidden,
        max_positions=reader.positive("seq_length", POSITIONS),
        norm_epsilon=reader.number("layer_norm_epsilon"),
        activation="gelu_tanh",
        tied=reader.flag("tie_word_embeddings"),
        alibi=Alibi(alibi_slopes(heads)),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        adds_normed=reader.flag("apply_residual_connection_post_layernorm"),
    )


def _either(reader: ConfigReader, name: str, other: str) -> str:
    """Chooses, of two keys with one meaning, the one that is there; an error where they differ."""
    if not reader.has(other):
        return name
    if reader.has(name):
        reader.needs(other, [reader.raw(name)])
        return name
    return other


class Bloom(llama.Llama):
    """Llama's ends by other names, with a norm of the token embedding."""

    def __init__(self, a: Architecture) -> None:
        block = partial(gpt_neox.block, layers="transformer.h", name="self_attention")
        words = "transformer.word_embeddings"
        super().__init__(a, block, LayerNorm, (words, "transformer.ln_f", "lm_head"))
        self.embedding.norm = LayerNorm(f"{words}_layernorm", a.hidden_size, a.norm_epsilon)

    def embed(self, tokens: Tokens) -> Any:
        return self.embedding.norm(self.embedding(tokens))


MODEL = replace(
    gpt_neox.MODEL,
    describe=describe,
    tree=Bloom,
    prefix="transformer.",
    unused_tensors=(),
)
