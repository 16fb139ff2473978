"""gpt2: layer norm, learned positions, one fused query-key-value matrix, stored transposed (Conv1D)."""

from collections.abc import Sequence
from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.tensor_spec import Part, fused
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.sizes import SizeKeys, read_sizes
from mindbatch.layers.decoder import Decoder
from mindbatch.layers.linear import ColumnLinear, Head, LayerNorm, RowLinear, Table, TokenEmbedding
from mindbatch.layers.rank import Tensor, Tokens
from mindbatch.models import ModelType, llama

KEYS = SizeKeys(
    hidden="n_embd",
    layers="n_layer",
    heads="n_head",
    inner="n_inner",
    inner_is_wide=True,
    positions="n_positions",
)
NAMES = llama.LayerNames("transformer.h", "ln_1", "attn", "c_proj", "ln_2", "mlp", ("c_fc",), "c_proj")


def describe(reader: ConfigReader) -> Architecture:
    arch = read_sizes(reader, KEYS, bias=True)
    reader.needs("add_cross_attention", [False])
    reader.needs("is_encoder_decoder", [False])
    scale = arch.head_dim**-0.5 if reader.flag("scale_attn_weights") else 1.0
    by_layer = reader.flag("scale_attn_by_inverse_layer_idx")
    scales = (scale / (layer + 1 if by_layer else 1) for layer in range(arch.num_layers))
    return replace(arch, attention_scales=tuple(scales))


class Attention(llama.Attention):
    def __init__(self, a: Architecture, source: str, layer: int, output: str) -> None:
        super().__init__(a, source, layer, output)
        joined = _conv1d(f"{source}.{output}", (a.hidden_size,), a.hidden_size, a.head_dim)
        self.output = RowLinear(*joined, bias=True)

    def projections(self, a: Architecture, source: str) -> tuple[Part, ...]:
        return _conv1d(f"{source}.c_attn", (a.hidden_size,) * 3, a.hidden_size, a.head_dim)


class Mlp(llama.Mlp):
    def __init__(self, a: Architecture, source: str, up: Sequence[str], down: str, *, is_fused: bool) -> None:
        super().__init__(a, source, up, down)
        hidden, inner = a.hidden_size, a.intermediate_size
        self.up = ColumnLinear(*_conv1d(f"{source}.{up[0]}", (inner,), hidden), bias=True)
        self.down = RowLinear(*_conv1d(f"{source}.{down}", (hidden,), inner), bias=True)


class Block(llama.Block):
    names, norm_type = NAMES, LayerNorm
    attention_type, mlp_type = Attention, Mlp


class Gpt2(Decoder):
    def __init__(self, a: Architecture) -> None:
        super().__init__(a)
        self.embedding = TokenEmbedding("transformer.wte", a.vocab_size, a.hidden_size)
        self.positions = Table("transformer.wpe", a.max_positions, a.hidden_size)
        self.norm = LayerNorm("transformer.ln_f", a.hidden_size, a.norm_epsilon)
        self.head = Head("lm_head", a.vocab_size, a.hidden_size, tied=a.tied)
        self.layers = [Block(a, layer) for layer in range(a.num_layers)]

    def embed(self, tokens: Tokens) -> Tensor:
        return self.embedding(tokens) + self.positions(tokens.positions)


def _conv1d(source: str, widths: tuple[int, ...], inputs: int, unit: int = 1) -> tuple[Part, ...]:
    return fused(f"{source}.weight", widths, inputs, unit, transposed=True)


MODEL = ModelType(
    describe,
    Gpt2,
    prefix="transformer.",
    unused_tensors=("*.attn.bias", "*.attn.masked_bias"),  # causal masks of old checkpoints
)
