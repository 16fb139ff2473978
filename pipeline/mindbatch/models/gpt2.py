"""gpt2: layer norm, learned positions, one fused query-key-value matrix, stored transposed (Conv1D)."""

from typing import Any

from mindbatch.layers.decoder import Decoder
from mindbatch.layers.embedding import Head, Table, TokenEmbedding
from mindbatch.layers.linear import ColumnLinear, RowLinear
from mindbatch.layers.norm import LayerNorm
from mindbatch.layers.rank import Tokens
from mindbatch.models import llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.llama import ACTIVATIONS
from mindbatch.models.model_type import ModelType
from mindbatch.models.tensor_spec import Part, fused


def describe(reader: ConfigReader) -> Architecture:
    hidden, layers, heads = reader.positive("n_embd"), reader.positive("n_layer"), reader.positive("n_head")
    if hidden % heads:
        reader.fault("n_embd", f"must be divisible by n_head={heads}")
    reader.needs("add_cross_attention", [False])
    reader.needs("is_encoder_decoder", [False])
    head_dim = max(1, hidden // heads)
    scale = head_dim**-0.5 if reader.flag("scale_attn_weights") else 1.0
    by_layer = reader.flag("scale_attn_by_inverse_layer_idx")
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
        attention_scales=tuple(scale / (layer + 1 if by_layer else 1) for layer in range(layers)),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
    )


class Attention(llama.Attention):
    """Query, key and value by one matrix, the output by another."""

    def __init__(self, a: Architecture, source: str, layer: int) -> None:
        super().__init__(a, source, layer)
        self.output = RowLinear(*_conv1d(f"{source}.c_proj", (a.hidden_size,), a.hidden_size), bias=True)

    def projections(self, a: Architecture, source: str) -> tuple[Part, ...]:
        return _conv1d(f"{source}.c_attn", (a.hidden_size,) * 3, a.hidden_size, a.head_dim)


class Mlp(llama.Mlp):
    """down(act(up(x)))."""

    def __init__(self, a: Architecture, source: str) -> None:
        super().__init__(a, source, ["c_fc"], "c_proj")
        hidden, inner = a.hidden_size, a.intermediate_size
        self.up = ColumnLinear(*_conv1d(f"{source}.c_fc", (inner,), hidden), bias=True)
        self.down = RowLinear(*_conv1d(f"{source}.c_proj", (hidden,), inner), bias=True)


class Block(llama.Block):
    def __init__(self, a: Architecture, layer: int) -> None:
        source = f"transformer.h.{layer}"
        self.attention_norm = LayerNorm(f"{source}.ln_1", a.hidden_size, a.norm_epsilon)
        self.attention = Attention(a, f"{source}.attn", layer)
        self.mlp_norm = LayerNorm(f"{source}.ln_2", a.hidden_size, a.norm_epsilon)
        self.mlp = Mlp(a, f"{source}.mlp")


class Gpt2(Decoder):
    def __init__(self, a: Architecture) -> None:
        super().__init__(a)
        self.embedding = TokenEmbedding("transformer.wte", a.vocab_size, a.hidden_size)
        self.positions = Table("transformer.wpe", a.max_positions, a.hidden_size)
        self.norm = LayerNorm("transformer.ln_f", a.hidden_size, a.norm_epsilon)
        self.head = Head("lm_head", a.vocab_size, a.hidden_size, tied=a.tied)
        self.layers = [Block(a, layer) for layer in range(a.num_layers)]

    def embed(self, tokens: Tokens) -> Any:
        return self.embedding(tokens) + self.positions(tokens.positions)


def _conv1d(source: str, widths: tuple[int, ...], inputs: int, unit: int = 1) -> tuple[Part, ...]:
    return fused(f"{source}.weight", widths, inputs, unit, transposed=True)


MODEL = ModelType(
    describe,
    Gpt2,
    prefix="transformer.",
    unused_tensors=("*.attn.bias", "*.attn.masked_bias"),  # causal masks of old checkpoints
)
