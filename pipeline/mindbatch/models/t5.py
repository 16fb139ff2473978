"""t5 (T5, v1.1, FLAN): an encoder and a decoder with biases by distance; nothing has a bias of its own."""

from mindbatch.architecture.architecture import Architecture, Encoder
from mindbatch.architecture.tensor_spec import Part
from mindbatch.config_json.reader import ConfigReader
from mindbatch.kernels.operations.attention import cross_attention, write_cache
from mindbatch.layers.attention import DistanceAttention, DistanceBiases, LayerBound
from mindbatch.layers.decoder import EncoderDecoder
from mindbatch.layers.linear import ColumnLinear, Head, RowLinear, TokenEmbedding
from mindbatch.layers.rank import Module, Tensor, Tokens
from mindbatch.models import ModelType, llama

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


def describe(reader: ConfigReader) -> Architecture:
    hidden, layers = reader.positive("d_model"), reader.positive("num_layers")
    heads, head_dim = reader.positive("num_heads"), reader.positive("d_kv")
    decoder_layers = reader.positive("num_decoder_layers", if_null=layers)
    reader.needs("is_encoder_decoder", [True])
    reader.needs("tie_encoder_decoder", [False])
    # transformers 5 says of every model that it is tied; only heads that were trained so are scaled.
    reader.needs("tie_word_embeddings", [True, False])
    tied = reader.flag(
        "scale_decoder_outputs" if reader.has("scale_decoder_outputs") else "tie_word_embeddings"
    )
    return Architecture(
        vocab_size=reader.positive("vocab_size"),
        hidden_size=hidden,
        num_layers=decoder_layers,
        heads=heads,
        head_dim=head_dim,
        intermediate_size=reader.positive("d_ff"),
        max_positions=POSITIONS,
        norm_epsilon=reader.number("layer_norm_epsilon"),
        activation=_activation(reader),
        tied=tied,
        attention_scales=(1.0,) * decoder_layers,
        logits_factor=hidden**-0.5 if tied else 1.0,
        encoder=_encoder(reader, layers),
    )


def _encoder(reader: ConfigReader, layers: int) -> Encoder:
    buckets = reader.positive("relative_attention_num_buckets")
    max_distance = reader.positive("relative_attention_max_distance")
    if buckets % 4:
        reader.error("relative_attention_num_buckets", "must be a multiple of 4")
    if max_distance <= buckets // 2:
        reader.error("relative_attention_max_distance", f"must be above {buckets // 2}, half of the buckets")
    return Encoder(
        num_layers=layers,
        buckets=buckets,
        max_distance=max_distance,
        is_gated=_is_gated(reader),
        start_id=_start_id(reader),
    )


def _activation(reader: ConfigReader) -> str:
    """Reads feed_forward_proj. A file may have what transformers makes of it, too, and computes with."""
    activation = reader.choice("feed_forward_proj", FEED_FORWARD)
    reader.needs("dense_act_fn", SPELT[activation])
    reader.needs("is_gated_act", [_is_gated(reader)])
    return activation


def _is_gated(reader: ConfigReader) -> bool:
    return str(reader.value("feed_forward_proj")).startswith("gated-")


def _start_id(reader: ConfigReader) -> int:
    """decoder_start_token_id; where it is absent the padding, with which T5 was trained to begin."""
    key = "decoder_start_token_id" if reader.value("decoder_start_token_id") is not None else "pad_token_id"
    return reader.token_id(key, "must be the id of a token, with which outputs begin")


class Attention(Module):
    """Products before and behind attention.

    fused: the matrices of the checkpoint, by their letters, that make one of ours.
    """

    def __init__(self, a: Architecture, source: str, **fused: str) -> None:
        width, hidden, unit = a.heads * a.head_dim, a.hidden_size, a.head_dim
        for joined, letters in fused.items():
            parts = (Part(f"{source}.{letter}.weight", width, hidden, unit=unit) for letter in letters)
            setattr(self, joined, ColumnLinear(*parts))
        self.output = RowLinear(Part(f"{source}.o.weight", hidden, width, unit=unit))


class SelfAttention(Attention):
    """Over all tokens in the encoder, over those before in the decoder, with a bias by distance."""

    qkv: ColumnLinear

    def __init__(self, a: Architecture, source: str, stack: str, layer: int) -> None:
        super().__init__(a, source, qkv="qkv")
        self.attend = DistanceAttention(a, layer, stack)

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        return self.output(self.attend(self.qkv(x_TH, tokens), tokens), tokens)


class CrossAttention(Attention):
    """Over the encoder's positions, whose keys and values are in the decoder's cache."""

    query: ColumnLinear
    key_value: ColumnLinear

    def __init__(self, a: Architecture, source: str, layer: int) -> None:
        super().__init__(a, source, query="q", key_value="kv")
        self.bound = LayerBound(a, layer)

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        layer = self.bound
        # A decoder's own positions begin where its encoder's end.
        seen = (*layer.cache, tokens.rows, tokens.block_tables, tokens.first_positions)
        return self.output(cross_attention(self.query(x_TH, tokens), *seen, shape=layer.shape), tokens)

    def write(self, hidden_TH: Tensor, tokens: Tokens) -> None:
        layer = self.bound
        keys_values = self.key_value(hidden_TH, tokens)
        write_cache(hidden_TH, keys_values, *layer.cache, tokens.slots, shape=layer.shape)


class Block(Module):
    """x + attention(norm(x)), in the decoder x + cross(norm(x)), then x + mlp(norm(x))."""

    cross: CrossAttention

    def __init__(self, a: Architecture, stack: str, layer: int) -> None:
        source, last = f"{stack}.block.{layer}.layer", 1
        self.attention_norm = llama.norm(a, f"{source}.0.layer_norm")
        self.attention = SelfAttention(a, f"{source}.0.SelfAttention", stack, layer)
        self.is_decoder = stack == "decoder"
        if self.is_decoder:
            self.cross_norm, last = llama.norm(a, f"{source}.1.layer_norm"), 2
            self.cross = CrossAttention(a, f"{source}.1.EncDecAttention", layer)
        self.mlp_norm = llama.norm(a, f"{source}.{last}.layer_norm")
        names = ["wi_0", "wi_1"] if a.encoder is not None and a.encoder.is_gated else ["wi"]
        self.mlp = llama.Mlp(a, f"{source}.{last}.DenseReluDense", names, "wo")

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        x_TH = x_TH + self.attention(self.attention_norm(x_TH), tokens)
        if self.is_decoder:
            x_TH = x_TH + self.cross(self.cross_norm(x_TH), tokens)
        return x_TH + self.mlp(self.mlp_norm(x_TH), tokens)


class EncoderStack(Module):
    def __init__(self, a: Architecture) -> None:
        assert a.encoder is not None
        self.norm = llama.norm(a, "encoder.final_layer_norm")
        self.layers = [Block(a, "encoder", layer) for layer in range(a.encoder.num_layers)]

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        for layer in self.layers:
            x_TH = layer(x_TH, tokens)
        return self.norm(x_TH)


class T5(EncoderDecoder):
    layers: list[Block]

    def __init__(self, a: Architecture) -> None:
        super().__init__(a)
        assert a.encoder is not None
        self.embedding = TokenEmbedding("shared", a.vocab_size, a.hidden_size)
        self.head = Head("lm_head", a.vocab_size, a.hidden_size, tied=a.tied)
        self.positions = DistanceBiases(a.encoder.buckets, a.heads)
        self.encoder = EncoderStack(a)
        self.norm = llama.norm(a, "decoder.final_layer_norm")
        self.layers = [Block(a, "decoder", layer) for layer in range(a.num_layers)]

    def encode(self, tokens: Tokens) -> Tensor:
        hidden_TH = self.encoder(self.embedding(tokens), tokens)
        for layer in self.layers:
            layer.cross.write(hidden_TH, tokens)
        return hidden_TH


MODEL = ModelType(
    describe,
    T5,
    prefix="",
    # A table that the first release has and nothing reads.
    unused_tensors=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
    copies=dict.fromkeys(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), "shared.weight"),
    head_as_stored=True,
)
