"""gemma2: Gemma with norms before and after, capped scores and logits, and a window on every other layer."""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.sizes import windows_by_pattern
from mindbatch.models import gemma, llama

WINDOWS_BUT_EVERY = 2


def describe(reader: ConfigReader) -> Architecture:
    arch = describe_family(reader, windows_by_pattern(reader, WINDOWS_BUT_EVERY), qk_norm=False)
    return replace(arch, attention_cap=read_cap(reader, "attn_logit_softcapping"))


def describe_family(reader: ConfigReader, windows: tuple[int, ...], qk_norm: bool) -> Architecture:
    arch = llama.describe_family(
        reader,
        windows=windows,
        bias_key="attention_bias",
        qk_norm=qk_norm,
        activation_key="hidden_activation",
    )
    scale = reader.number("query_pre_attn_scalar") ** -0.5
    return replace(
        gemma.scaled(arch),
        attention_scales=(scale,) * arch.num_layers,
        logits_cap=read_cap(reader, "final_logit_softcapping"),
    )


def read_cap(reader: ConfigReader, key: str) -> float:
    """A cap of scores or logits; 0 for null, which is none."""
    return 0.0 if reader.raw(key) is None else reader.number(key)


class Block(llama.FourNormBlock):
    names = llama.LayerNames(mlp_norm="pre_feedforward_layernorm")


MODEL = replace(llama.MODEL, describe=describe, tree=llama.with_blocks(Block))
