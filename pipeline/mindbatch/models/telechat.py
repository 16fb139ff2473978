"""telechat: TeleChat2. Llama with biases behind attention and MLP, and each head's key beside its value."""

from dataclasses import replace

from mindbatch.layers.linear import RowLinear
from mindbatch.models import llama
from mindbatch.models.architecture import Architecture, Rotary
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.rope import plain_frequencies
from mindbatch.models.tensor_spec import Part, interleaved

REFUSED = ("apply_residual_connection_post_layernorm", "embed_layernorm", "logn")


def describe(reader: ConfigReader) -> Architecture:
    reader.needs("hidden_act", ["silu"])
    for key in REFUSED:
        reader.needs(key, [False])
    reader.needs("rope_scaling", [None])
    hidden, heads, layers = (reader.positive(key) for key in ("hidden_size", "n_head", "n_layer"))
    reader.needs("n_inner", [reader.positive("ffn_hidden_size")])
    reader.needs("n_embed", [hidden])
    reader.needs("num_hidden_layers", [layers])
    reader.needs("num_attention_heads", [heads])
    head_dim = max(1, hidden // heads)
    if hidden % heads or head_dim % 2:
        reader.fault("n_head", f"must divide hidden_size={hidden} into heads of an even size")
    kv_heads = reader.positive("num_key_value_heads", heads)
    if heads % kv_heads:
        reader.fault("num_key_value_heads", f"must divide n_head={heads}")
    frequencies = plain_frequencies(reader.number("rope_theta"), max(2, head_dim))
    return Architecture(
        vocab_size=reader.positive("vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=reader.positive("ffn_hidden_size"),
        max_positions=_positions(reader),
        norm_epsilon=reader.number("layer_norm_epsilon"),
        activation="silu",
        tied=reader.flag("tie_word_embeddings"),
        rotary=Rotary(tuple(map(float, frequencies))),
        output_bias=True,
    )


def _positions(reader: ConfigReader) -> int:
    """Positions up to which its rotations are those of one base.

    Its own code makes the base larger where training_seqlen is above base_seqlen, and for longer texts.
    The first TeleChat, of the same model_type, has no such key and scales beyond another length.
    """
    trained, unscaled = reader.positive("training_seqlen"), reader.raw("base_seqlen")
    if unscaled is None:
        reader.fault("base_seqlen", "TeleChat2's config.json has it; the first TeleChat is not run")
        return trained
    if trained > reader.positive("base_seqlen"):
        reader.fault("training_seqlen", f"must be at most base_seqlen={unscaled}: rotations are not scaled")
    return min(trained, reader.positive("max_position_embeddings", trained))


class Attention(llama.Attention):
    """Query by one matrix of the checkpoint, key and value by another in which the heads' two take turns."""

    def __init__(self, a: Architecture, source: str, layer: int) -> None:
        super().__init__(a, source, layer, "dense")

    def projections(self, a: Architecture, source: str) -> tuple[Part, ...]:
        size, hidden = a.head_dim, a.hidden_size
        query = Part(f"{source}.query.weight", a.heads * size, hidden, unit=size)
        keys = interleaved(f"{source}.key_value.weight", (size, size), a.kv_heads, hidden, size)
        return query, *(replace(part, is_shared=True) for part in keys)


class Block(llama.Block):
    def __init__(self, a: Architecture, layer: int) -> None:
        source = f"transformer.h.{layer}"
        self.attention_norm = llama.norm(a, f"{source}.input_layernorm")
        self.attention = Attention(a, f"{source}.self_attention", layer)
        self.mlp_norm = llama.norm(a, f"{source}.post_attention_layernorm")
        self.mlp = llama.Mlp(a, f"{source}.mlp")
        down = Part(f"{source}.mlp.down_proj.weight", a.hidden_size, a.intermediate_size)
        self.mlp.down = RowLinear(down, bias=True)


MODEL = replace(
    llama.MODEL,
    describe=describe,
    tree=llama.with_blocks(Block, ends=("transformer.word_embeddings", "transformer.ln_f", "lm_head")),
    prefix="transformer.",
)
