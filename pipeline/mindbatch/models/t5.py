"""t5 (T5, v1.1, FLAN): an encoder and a decoder with biases by distance; nothing has a bias of its own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mindbatch.models.architecture import Architecture, Encoder
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.model_type import ModelType
from mindbatch.models.tensor_spec import Part, Sharding, TensorSpec, linear, norm, vocabulary

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


def tensors(arch: Architecture) -> list[TensorSpec]:
    """Every parameter and the checkpoint tensors it is made of."""
    assert arch.encoder is not None
    specs = [vocabulary("embedding.weight", "shared.weight", arch.vocab_size, arch.hidden_size)]
    if not arch.tied:
        specs.append(vocabulary("head.weight", "lm_head.weight", arch.vocab_size, arch.hidden_size))
    for stack, prefix in (("encoder", "encoder."), ("decoder", "")):
        table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        specs.append(TensorSpec(f"positions.{stack}", (Part(table, arch.encoder.buckets, arch.heads),)))
        specs += norm(f"{prefix}norm", f"{stack}.final_layer_norm", arch.hidden_size)
    for layer in range(arch.encoder.num_layers):
        source, name = f"encoder.block.{layer}.layer", f"encoder.layers.{layer}"
        specs += _attention(arch, f"{source}.0", name, "SelfAttention", {"qkv": "qkv"})
        specs += _mlp(arch, f"{source}.1", name)
    for layer in range(arch.num_layers):
        source, name = f"decoder.block.{layer}.layer", f"layers.{layer}"
        specs += _attention(arch, f"{source}.0", name, "SelfAttention", {"qkv": "qkv"})
        cross = {"query": "q", "key_value": "kv"}
        specs += _attention(arch, f"{source}.1", name, "EncDecAttention", cross, "cross")
        specs += _mlp(arch, f"{source}.2", name)
    return specs


def _attention(
    arch: Architecture, source: str, name: str, kind: str, fused: dict[str, str], own: str = "attention"
) -> list[TensorSpec]:
    """fused: the matrices of the checkpoint, by their letters, that make one of ours."""
    width, hidden = arch.heads * arch.head_dim, arch.hidden_size
    specs = norm(f"{name}.{own}_norm", f"{source}.layer_norm", hidden)
    for joined, letters in fused.items():
        parts = (Part(f"{source}.{kind}.{x}.weight", width, hidden, unit=arch.head_dim) for x in letters)
        specs += linear(f"{name}.{own}.{joined}", tuple(parts), Sharding.OUTPUTS, bias=False)
    output = (Part(f"{source}.{kind}.o.weight", hidden, width),)
    return [*specs, *linear(f"{name}.{own}.output", output, Sharding.INPUTS, bias=False)]


def _mlp(arch: Architecture, source: str, name: str) -> list[TensorSpec]:
    assert arch.encoder is not None
    hidden, inner, dense = arch.hidden_size, arch.intermediate_size, f"{source}.DenseReluDense"
    names = ("wi_0", "wi_1") if arch.encoder.is_gated else ("wi",)
    up = tuple(Part(f"{dense}.{each}.weight", inner, hidden) for each in names)
    return [
        *norm(f"{name}.mlp_norm", f"{source}.layer_norm", hidden),
        *linear(f"{name}.mlp.up", up, Sharding.OUTPUTS, bias=False),
        *linear(
            f"{name}.mlp.down", (Part(f"{dense}.wo.weight", hidden, inner),), Sharding.INPUTS, bias=False
        ),
    ]


MODEL = ModelType(
    describe,
    tensors,
    network,
    DEFAULTS,
    prefix="",
    # A table that the first release has and nothing reads.
    unused_tensors=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
    copies=dict.fromkeys(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), "shared.weight"),
    head_as_stored=True,
)
