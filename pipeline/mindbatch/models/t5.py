"""t5 (T5, v1.1, FLAN): an encoder and a decoder with biases by distance; nothing has a bias of its own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mindbatch.layers.parameters import (
    ColumnLinear,
    Head,
    Module,
    RmsNorm,
    RowLinear,
    TokenEmbedding,
    Vectors,
)
from mindbatch.models import llama
from mindbatch.models.architecture import Architecture, Encoder
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.model_type import ModelType
from mindbatch.models.tensor_spec import Part

if TYPE_CHECKING:
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Network

# Of transformers' T5Config.
DEFAULTS = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
    "is_encoder_decoder": True,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}
POSITIONS = 4096
"""Most tokens of input and output together: relative positions themselves have no limit."""
# feed_forward_proj: the activation, and whether it is of a gate.
FEED_FORWARD = {
    "relu": "relu",
    "gelu": "gelu",
    "silu": "silu",
    "gated-gelu": "gelu_tanh",
    "gated-relu": "relu",
    "gated-silu": "silu",
}
# As files spell these activations in dense_act_fn.
SPELT = {"relu": ["relu"], "gelu": ["gelu"], "silu": ["silu"], "gelu_tanh": ["gelu_new"]}
TRAINED = ("n_positions", "num_labels")  # the input's length then, and a head for classification


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `t5` configuration; faults are left in the reader."""
    hidden, layers = reader.positive("d_model"), reader.positive("num_layers")
    heads, head_dim = reader.positive("num_heads"), reader.positive("d_kv")
    decoder_layers = reader.positive("num_decoder_layers", if_null=layers)
    reader.needs("is_encoder_decoder", [True])
    reader.needs("tie_encoder_decoder", [False])
    reader.ignore(TRAINED)
    # transformers 5 says of every model that it is tied; only heads that were trained so are scaled.
    reader.needs("tie_word_embeddings", [True, False])
    tied = reader.flag(
        "scale_decoder_outputs" if reader.has("scale_decoder_outputs") else "tie_word_embeddings"
    )
    return Architecture(
        model_type="t5",
        vocab_size=reader.positive("vocab_size"),
        hidden_size=hidden,
        num_layers=decoder_layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        intermediate_size=reader.positive("d_ff"),
        max_positions=POSITIONS,
        norm_epsilon=reader.number("layer_norm_epsilon"),
        activation=_activation(reader),
        tied=tied,
        windows=(0,) * decoder_layers,
        attention_scales=(1.0,) * decoder_layers,
        logits_factor=hidden**-0.5 if tied else 1.0,
        encoder=_encoder(reader, layers),
    )


def _encoder(reader: ConfigReader, layers: int) -> Encoder:
    buckets = reader.positive("relative_attention_num_buckets")
    farthest = reader.positive("relative_attention_max_distance")
    if buckets % 4:
        reader.fault("relative_attention_num_buckets", "must be a multiple of 4")
    if farthest <= buckets // 2:
        reader.fault("relative_attention_max_distance", f"must be above {buckets // 2}, half of the buckets")
    return Encoder(
        num_layers=layers,
        buckets=buckets,
        farthest=farthest,
        is_gated=_is_gated(reader),
        start_id=_start_id(reader),
    )


def _activation(reader: ConfigReader) -> str:
    """Of feed_forward_proj. A file may have what transformers makes of it, too, and computes with."""
    activation = reader.choice("feed_forward_proj", FEED_FORWARD)
    reader.needs("dense_act_fn", SPELT[activation])
    reader.needs("is_gated_act", [_is_gated(reader)])
    return activation


def _is_gated(reader: ConfigReader) -> bool:
    return str(reader.value("feed_forward_proj")).startswith("gated-")


def _start_id(reader: ConfigReader) -> int:
    """decoder_start_token_id; where it is absent the padding, with which T5 was trained to begin."""
    key = "decoder_start_token_id" if reader.value("decoder_start_token_id") is not None else "pad_token_id"
    found = reader.value(key)
    if (
        isinstance(found, bool)
        or not isinstance(found, int)
        or not 0 <= found < reader.positive("vocab_size")
    ):
        reader.fault(key, "must be the id of a token, with which outputs begin")
        return 0
    return found


def network(layers: Layers) -> Network:
    """Encoder and decoder over one token embedding, each with a last RMS norm."""
    return layers.encoder_decoder(
        partial(layers.encoder_block, "encoder.layers"), partial(layers.cross_block, "layers")
    )


class Attention(Module):
    """fused: the matrices of the checkpoint, by their letters, that make one of ours."""

    def __init__(self, a: Architecture, source: str, **fused: str) -> None:
        width, hidden, unit = a.heads * a.head_dim, a.hidden_size, a.head_dim
        for joined, letters in fused.items():
            parts = (Part(f"{source}.{letter}.weight", width, hidden, unit=unit) for letter in letters)
            setattr(self, joined, ColumnLinear(*parts))
        self.output = RowLinear(Part(f"{source}.o.weight", hidden, width))


class Block(Module):
    """x + attention(norm(x)), in the decoder x + cross(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, a: Architecture, stack: str, index: int) -> None:
        layer, hidden, last = f"{stack}.block.{index}.layer", a.hidden_size, 1
        self.attention_norm = RmsNorm(f"{layer}.0.layer_norm", hidden)
        self.attention = Attention(a, f"{layer}.0.SelfAttention", qkv="qkv")
        if stack == "decoder":
            self.cross_norm, last = RmsNorm(f"{layer}.1.layer_norm", hidden), 2
            self.cross = Attention(a, f"{layer}.1.EncDecAttention", query="q", key_value="kv")
        self.mlp_norm = RmsNorm(f"{layer}.{last}.layer_norm", hidden)
        names = ["wi_0", "wi_1"] if a.encoder is not None and a.encoder.is_gated else ["wi"]
        self.mlp = llama.Mlp(a, f"{layer}.{last}.DenseReluDense", names, "wo")


class Stack(Module):
    """The blocks of the encoder, or of the decoder, and a last norm."""

    def __init__(self, a: Architecture, stack: str, layers: int) -> None:
        self.norm = RmsNorm(f"{stack}.final_layer_norm", a.hidden_size)
        self.layers = [Block(a, stack, index) for index in range(layers)]


class Model(Stack):
    """Encoder and decoder over one token embedding, each with biases of scores by distance."""

    def __init__(self, a: Architecture) -> None:
        assert a.encoder is not None
        self.embedding = TokenEmbedding("shared", a.vocab_size, a.hidden_size)
        self.head = Head("lm_head", a.vocab_size, a.hidden_size, tied=a.tied)
        self.positions = Module()
        for stack in ("encoder", "decoder"):
            table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
            setattr(self.positions, stack, Vectors(table, a.encoder.buckets, a.heads))
        self.encoder = Stack(a, "encoder", a.encoder.num_layers)
        super().__init__(a, "decoder", a.num_layers)


MODEL = ModelType(
    describe,
    Model,
    network,
    DEFAULTS,
    prefix="",
    # A table that the first release has and nothing reads.
    unused_tensors=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
    copies=dict.fromkeys(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), "shared.weight"),
    head_as_stored=True,
)
