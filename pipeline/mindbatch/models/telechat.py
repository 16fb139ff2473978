"""telechat: TeleChat2. Llama with biases behind attention and MLP, and each head's key beside its value."""

from collections.abc import Sequence
from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.tensor_spec import Part, interleaved
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.rope import plain_rotary
from mindbatch.config_json.sizes import SizeKeys, read_sizes
from mindbatch.layers.linear import RowLinear
from mindbatch.models import llama

KEYS = SizeKeys(
    layers="n_layer", heads="n_head", inner="ffn_hidden_size", positions="training_seqlen", activation=""
)
REFUSED = ("apply_residual_connection_post_layernorm", "embed_layernorm", "logn")


def describe(reader: ConfigReader) -> Architecture:
    reader.needs("hidden_act", ["silu"])
    for key in REFUSED:
        reader.needs(key, [False])
    reader.needs("rope_scaling", [None])
    hidden, heads = reader.positive("hidden_size"), reader.positive("n_head")
    head_dim = max(1, hidden // heads)
    arch = read_sizes(reader, KEYS, head_dim=head_dim)
    reader.needs("n_inner", [arch.intermediate_size])
    reader.needs("n_embed", [hidden])
    reader.needs("num_hidden_layers", [arch.num_layers])
    reader.needs("num_attention_heads", [heads])
    if hidden % heads or head_dim % 2:
        reader.error("n_head", f"must divide hidden_size={hidden} into heads of an even size")
    kv_heads = reader.positive("num_key_value_heads", heads)
    if heads % kv_heads:
        reader.error("num_key_value_heads", f"must divide n_head={heads}")
    rotary = plain_rotary(reader.number("rope_theta"), max(2, head_dim))
    return replace(arch, kv_heads=kv_heads, max_positions=_positions(reader), rotary=rotary, output_bias=True)


def _positions(reader: ConfigReader) -> int:
    """Positions up to which its rotations are those of one base.

    Its own code makes the base larger where training_seqlen is above base_seqlen, and for longer texts.
    The first TeleChat, of the same model_type, has no such key and scales beyond another length.
    """
    trained, unscaled = reader.positive("training_seqlen"), reader.raw("base_seqlen")
    if unscaled is None:
        reader.error("base_seqlen", "TeleChat2's config.json has it; the first TeleChat is not run")
        return trained
    if trained > reader.positive("base_seqlen"):
        reader.error("training_seqlen", f"must be at most base_seqlen={unscaled}: rotations are not scaled")
    return min(trained, reader.positive("max_position_embeddings", trained))


class Attention(llama.Attention):
    """Query by one matrix of the checkpoint, key and value by another, interleaved head by head."""

    def projections(self, a: Architecture, source: str) -> tuple[Part, ...]:
        size, hidden = a.head_dim, a.hidden_size
        query = Part(f"{source}.query.weight", a.heads * size, hidden, unit=size)
        keys = interleaved(f"{source}.key_value.weight", (size, size), a.kv_heads, hidden, size)
        return query, *(replace(part, is_shared=True) for part in keys)


class Mlp(llama.Mlp):
    """Llama's, with a bias on the last matrix."""

    def __init__(self, a: Architecture, source: str, up: Sequence[str], down: str, *, is_fused: bool) -> None:
        super().__init__(a, source, up, down)
        joined = Part(f"{source}.{down}.weight", a.hidden_size, a.intermediate_size)
        self.down = RowLinear(joined, bias=True)


class Block(llama.Block):
    names = llama.LayerNames("transformer.h", attention="self_attention", output="dense")
    attention_type, mlp_type = Attention, Mlp


MODEL = replace(
    llama.MODEL,
    describe=describe,
    tree=llama.with_blocks(Block, ends=("transformer.word_embeddings", "transformer.ln_f", "lm_head")),
    prefix="transformer.",
)
