"""gptj (GPT-J): attention and MLP side by side after one norm, neighbours in each head rotated."""

from dataclasses import replace

from mindbatch.layers.embedding import Head
from mindbatch.layers.norm import LayerNorm
from mindbatch.models import gpt_neox, llama
from mindbatch.models.architecture import Architecture, Rotary
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.llama import ACTIVATIONS
from mindbatch.models.rope import plain_frequencies


def describe(reader: ConfigReader) -> Architecture:
    hidden, layers, heads = reader.positive("n_embd"), reader.positive("n_layer"), reader.positive("n_head")
    head_dim = gpt_neox.whole_heads(reader, "n_embd", hidden, heads, "n_head")
    width = reader.positive("rotary_dim")
    if width > head_dim or width % 2:
        reader.fault("rotary_dim", f"must be even and at most the {head_dim} numbers of a head")
    reader.needs("rotary", [True])
    reader.needs("scale_attn_weights", [True])
    return Architecture(
        vocab_size=reader.positive("vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        heads=heads,
        head_dim=head_dim,
        intermediate_size=reader.positive("n_inner", 4 * hidden),
        max_positions=reader.positive("n_positions"),
        norm_epsilon=reader.number("layer_norm_epsilon"),
        activation=reader.choice("activation_function", ACTIVATIONS),
        tied=reader.flag("tie_word_embeddings"),
        rotary=Rotary(tuple(map(float, plain_frequencies(10000.0, width))), is_interleaved=True),
        mlp_bias=True,
        is_parallel=True,
        shares_norm=True,
    )


class Block(gpt_neox.ParallelBlock):
    """x + (attention(norm(x)) + mlp(norm(x))), of one norm."""

    def __init__(self, a: Architecture, layer: int) -> None:
        source = f"transformer.h.{layer}"
        attention = llama.Attention(a, f"{source}.attn", layer, "out_proj")
        super().__init__(a, source, attention, ["ln_1"])
        self.mlp = llama.Mlp(a, f"{source}.mlp", ["fc_in"], "fc_out")


class GptJ(llama.Llama):
    """Llama's ends by other names, with a bias of the head."""

    def __init__(self, a: Architecture) -> None:
        super().__init__(a, Block, LayerNorm, ("transformer.wte", "transformer.ln_f", "lm_head"))
        self.head = Head("lm_head", a.vocab_size, a.hidden_size, tied=a.tied, bias=True)


MODEL = replace(
    gpt_neox.MODEL,
    describe=describe,
    tree=GptJ,
    prefix="transformer.",
    unused_tensors=("*.attn.bias", "*.attn.masked_bias", "*.attn.embed_positions"),
)
