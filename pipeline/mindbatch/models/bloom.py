"""bloom: ALiBi, a norm of the embedding, fused heads; otherwise GPT-2's blocks."""

from dataclasses import replace
from functools import partial

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.sizes import SizeKeys, read_sizes
from mindbatch.kernels.shapes import Alibi, alibi_slopes
from mindbatch.layers.linear import LayerNorm
from mindbatch.layers.rank import Tensor, Tokens
from mindbatch.models import gpt_neox, llama

POSITIONS = 2048
"""Positions of training where `seq_length` does not say how many: ALiBi itself has no limit."""


def describe(reader: ConfigReader) -> Architecture:
    keys = SizeKeys(
        layers="n_layer",
        heads="n_head",
        inner="hidden_size",
        positions="seq_length",
        activation="",
    )
    arch = read_sizes(reader, keys, default_positions=POSITIONS, bias=True)
    reader.needs("n_inner", [4 * arch.hidden_size])
    if reader.value("pretraining_tp") not in (None, 1):
        reader.needs("slow_but_exact", [False])  # adds up the parts of a product, and leaves out their biases
    adds_normed = reader.flag("apply_residual_connection_post_layernorm")
    return replace(
        arch,
        intermediate_size=4 * arch.hidden_size,
        activation="gelu_tanh",
        alibi=Alibi(alibi_slopes(arch.heads)),
        details=gpt_neox.GptNeoxDetails(adds_normed=adds_normed),
    )


class Bloom(llama.Llama):
    """Llama's ends by other names, with a norm of the token embedding."""

    def __init__(self, a: Architecture) -> None:
        names = replace(gpt_neox.NAMES, layers="transformer.h", attention="self_attention")
        block = partial(gpt_neox.block, names=names)
        words = "transformer.word_embeddings"
        super().__init__(a, block, LayerNorm, (words, "transformer.ln_f", "lm_head"))
        self.embedding.norm = LayerNorm(f"{words}_layernorm", a.hidden_size, a.norm_epsilon)

    def embed(self, tokens: Tokens) -> Tensor:
        return self.embedding.norm(self.embedding(tokens))


MODEL = replace(gpt_neox.MODEL, describe=describe, tree=Bloom, prefix="transformer.", unused_tensors=())
