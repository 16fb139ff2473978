"""gemma2: Gemma with norms before and after, capped scores and logits, and a window on every other layer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mindbatch.layers.parameters import Module, RmsNorm
from mindbatch.models import gemma, llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.layer_kinds import windows_by_pattern

if TYPE_CHECKING:
    from mindbatch.kernels.layer import Operation
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Network

# Of transformers' Gemma2Config.
DEFAULTS = {key: value for key, value in gemma.DEFAULTS.items() if key != "hidden_act"} | {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
WINDOWS_BUT_EVERY = 2


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `gemma2` configuration."""
    reader.ignore(["sliding_window_size"])  # of early files, beside sliding_window
    arch = describe_family(reader, windows_by_pattern(reader, WINDOWS_BUT_EVERY), qk_norm=False)
    return replace(arch, attention_cap=_cap(reader, "attn_logit_softcapping"))


def describe_family(reader: ConfigReader, windows: tuple[int, ...], qk_norm: bool) -> Architecture:
    """What Gemma 2 and 3 have in common."""
    reader.ignore(["hidden_act"])  # transformers computes with hidden_activation
    bias = reader.flag("attention_bias")
    arch = llama.describe_family(
        reader,
        windows=windows,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=qk_norm,
        activation_key="hidden_activation",
    )
    scale = reader.number("query_pre_attn_scalar") ** -0.5
    return replace(
        arch,
        attention_scales=(scale,) * arch.num_layers,
        logits_cap=_cap(reader, "final_logit_softcapping"),
    )


def _cap(reader: ConfigReader, key: str) -> float:
    return 0.0 if reader.raw(key) is None else reader.number(key)


def network(layers: Layers) -> Network:
    """Gemma's embedding and last norm, with other blocks between."""
    embedding = partial(layers.embedding, factor=layers.arch.hidden_size**0.5)
    return layers.network(embedding, block, partial(layers.rms_norm, "norm", offset=1.0))


def block(layers: Layers, index: int) -> Operation:
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x)))."""
    name = f"layers.{index}"
    after_attention, after_mlp = (
        layers.plain_rms_norm(f"{name}.{part}.after_norm", offset=1.0) for part in ("attention", "mlp")
    )
    return layers.block(
        layers.rms_norm(f"{name}.attention_norm", offset=1.0),
        layers.attention(f"{name}.attention", index, after_attention, norm_offset=1.0),
        layers.rms_norm(f"{name}.mlp_norm", offset=1.0),
        layers.gated_mlp(f"{name}.mlp", after_mlp),
    )


class Block(llama.Block):
    """Llama's with norms of what attention and MLP add, too."""

    def __init__(self, a: Architecture, index: int) -> None:
        super().__init__(a, index)
        source = f"model.layers.{index}"
        self.attention.after_norm = RmsNorm(f"{source}.post_attention_layernorm", a.hidden_size)
        self.mlp_norm = RmsNorm(f"{source}.pre_feedforward_layernorm", a.hidden_size)
        self.mlp.after_norm = RmsNorm(f"{source}.post_feedforward_layernorm", a.hidden_size)


class Model(llama.Model):
    """Llama's ends around blocks with four norms."""

    def block(self, a: Architecture, index: int) -> Module:
        """The layer of an index."""
        return Block(a, index)


MODEL = replace(llama.MODEL, describe=describe, tree=Model, network=network, defaults=DEFAULTS)
