"""gptj (GPT-J): attention and MLP side by side after one norm, neighbours in each head rotated."""

from dataclasses import replace
from functools import partial

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.rope import plain_rotary
from mindbatch.config_json.sizes import read_sizes
from mindbatch.layers.linear import Head, LayerNorm
from mindbatch.models import gpt2, gpt_neox, llama

NAMES = llama.LayerNames("transformer.h", "ln_1", "attn", "out_proj", up=("fc_in",), down="fc_out")


def describe(reader: ConfigReader) -> Architecture:
    arch, width = read_sizes(reader, gpt2.KEYS), reader.positive("rotary_dim")
    if width > arch.head_dim or width % 2:
        reader.error("rotary_dim", f"must be even and at most the {arch.head_dim} numbers of a head")
    reader.needs("rotary", [True])
    reader.needs("scale_attn_weights", [True])
    rotary = plain_rotary(10000.0, width, is_interleaved=True)
    details = gpt_neox.GptNeoxDetails(is_parallel=True, shares_norm=True)
    return replace(arch, rotary=rotary, mlp_bias=True, details=details)


class GptJ(llama.Llama):
    """Llama's ends by other names, with a bias of the head."""

    def __init__(self, a: Architecture) -> None:
        block = partial(gpt_neox.block, names=NAMES, attention=llama.Attention)
        super().__init__(a, block, LayerNorm, ("transformer.wte", "transformer.ln_f", "lm_head"))
        self.head = Head("lm_head", a.vocab_size, a.hidden_size, tied=a.tied, bias=True)


MODEL = replace(
    gpt_neox.MODEL,
    describe=describe,
    tree=GptJ,
    prefix="transformer.",
    unused_tensors=("*.attn.bias", "*.attn.masked_bias", "*.attn.embed_positions"),
)
