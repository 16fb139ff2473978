"""gptj (GPT-J): attention and MLP side by side after one norm, neighbours in each head rotated."""

from __future__ import annotations

from dataclasses import replace

from mindbatch.models import gpt_neox
from mindbatch.models.architecture import Architecture, Rotary
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.gpt2 import SUMMARY_KEYS
from mindbatch.models.llama import ACTIVATIONS
from mindbatch.models.rope import plain_frequencies
from mindbatch.models.tensor_spec import Part, Sharding, TensorSpec, linear, norm, vocabulary

# Of transformers' GPTJConfig.
DEFAULTS = {
    "vocab_size": 50400,
    "n_positions": 2048,
    "n_embd": 4096,
    "n_layer": 28,
    "n_head": 16,
    "rotary_dim": 64,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
}


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `gptj` configuration; faults are left in the reader."""
    hidden, layers, heads = reader.positive("n_embd"), reader.positive("n_layer"), reader.positive("n_head")
    head_dim = gpt_neox.whole_heads(reader, "n_embd", hidden, heads, "n_head")
    width = reader.positive("rotary_dim")
    if width > head_dim or width % 2:
        reader.fault("rotary_dim", f"must be even and at most the {head_dim} numbers of a head")
    reader.needs("rotary", [True])
    reader.needs("scale_attn_weights", [True])
    reader.ignore(SUMMARY_KEYS)
    return Architecture(
        model_type="gptj",
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
        rotary=Rotary(tuple(map(float, plain_frequencies(10000.0, width))), is_interleaved=True),
        windows=(0,) * layers,
        attention_scales=(head_dim**-0.5,) * layers,
        mlp_bias=True,
        is_parallel=True,
        shares_norm=True,
    )


def tensors(arch: Architecture) -> list[TensorSpec]:
    """Every parameter and the checkpoint tensors it is made of; the head has a bias."""
    hidden = arch.hidden_size
    specs = [
        vocabulary("embedding.weight", "transformer.wte.weight", arch.vocab_size, hidden),
        *norm("norm", "transformer.ln_f", hidden, "bias"),
        TensorSpec("head.bias", (Part("lm_head.bias", arch.vocab_size),), Sharding.VOCABULARY),
    ]
    if not arch.tied:
        specs.append(vocabulary("head.weight", "lm_head.weight", arch.vocab_size, hidden))
    for layer in range(arch.num_layers):
        specs += _block_tensors(arch, f"transformer.h.{layer}", f"layers.{layer}")
    return specs


def _block_tensors(arch: Architecture, source: str, name: str) -> list[TensorSpec]:
    hidden, inner = arch.hidden_size, arch.intermediate_size

    def matrix(which: str, outputs: int, inputs: int, unit: int = 1) -> Part:
        return Part(f"{source}.{which}.weight", outputs, inputs, unit=unit)

    qkv = tuple(matrix(f"attn.{which}_proj", hidden, hidden, arch.head_dim) for which in "qkv")
    output, up, down = (
        (matrix("attn.out_proj", hidden, hidden),),
        (matrix("mlp.fc_in", inner, hidden),),
        (matrix("mlp.fc_out", hidden, inner),),
    )
    return [
        *norm(f"{name}.attention_norm", f"{source}.ln_1", hidden, "bias"),
        *linear(f"{name}.attention.qkv", qkv, Sharding.OUTPUTS, bias=False),
        *linear(f"{name}.attention.output", output, Sharding.INPUTS, bias=False),
        *linear(f"{name}.mlp.up", up, Sharding.OUTPUTS, bias=True),
        *linear(f"{name}.mlp.down", down, Sharding.INPUTS, bias=True),
    ]


MODEL = replace(
    gpt_neox.MODEL,
    describe=describe,
    tensors=tensors,
    defaults=DEFAULTS,
    prefix="transformer.",
    unused_tensors=("*.attn.bias", "*.attn.masked_bias", "*.attn.embed_positions"),
)
