"""The weights of MindFormers' models that adapters act on, and how its modules join and cut them.

The names are those of this project's own models (`models/stage_cut.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from mindbatch.backends.mindformers.description import EMBEDDING, HEAD, Description, GroupedAttention
from mindbatch.layers.embedding import Head, TokenEmbedding
from mindbatch.models.tensor_spec import Layout, Part, Sharding, TensorSpec, fused


def adapter_specs(model: Description) -> list[TensorSpec]:
    """The linear layers, the token embedding and the head; of no router, no experts, no compressed vectors.

    Not of keys and values that the checkpoint has in one tensor either: MindFormers divides it by heads.
    """
    sizes, end = (model.vocab_size, model.hidden_size), ".weight"
    embedding, head = (model.own_name(name).removesuffix(end) for name in (EMBEDDING, HEAD))
    specs = [*TokenEmbedding(embedding, *sizes).parameters("embedding")]
    specs += Head(head, *sizes, tied=model.tied).parameters("head")
    for layer in range(model.num_layers):
        specs += _attention(model, layer)
        if model.experts is None or layer < model.experts.first:
            specs += _mlp(model, layer)
    return specs


def _attention(model: Description, layer: int) -> Iterator[TensorSpec]:
    attention, hidden = model.attention, model.hidden_size

    def source(projection: str) -> str:
        return model.own_name(f"model.layers.{layer}.self_attn.{projection}.weight")

    name = f"layers.{layer}.attention"
    if isinstance(attention, GroupedAttention):
        size, inner = attention.head_dim, attention.heads * attention.head_dim
        counts = {"q": attention.heads, "k": attention.kv_heads, "v": attention.kv_heads}
        if not attention.fused_kv:
            parts = (
                Part(source(f"{which}_proj"), count * size, hidden, unit=size, is_shared=which != "q")
                for which, count in counts.items()
            )
            yield _linear(f"{name}.qkv", tuple(parts), Sharding.OUTPUTS)
    else:
        inner = attention.heads * attention.value_dim
    yield _linear(f"{name}.output", (Part(source("o_proj"), hidden, inner),), Sharding.INPUTS)


def _mlp(model: Description, layer: int) -> Iterator[TensorSpec]:
    hidden, inner = model.hidden_size, model.intermediate_size

    def source(projection: str) -> str:
        return model.own_name(f"model.layers.{layer}.mlp.{projection}.weight")

    if model.fused_mlp:
        up = fused(source("gate_up_proj"), (inner, inner), hidden)
    else:
        up = tuple(Part(source(which), inner, hidden) for which in ("gate_proj", "up_proj"))
    yield _linear(f"layers.{layer}.mlp.up", up, Sharding.OUTPUTS)
    down = (Part(source("down_proj"), hidden, inner),)
    yield _linear(f"layers.{layer}.mlp.down", down, Sharding.INPUTS)


def _linear(name: str, parts: tuple[Part, ...], sharding: Sharding) -> TensorSpec:
    return TensorSpec(f"{name}.weight", parts, sharding, Layout.PACKED)
