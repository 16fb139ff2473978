"""phi3: Phi-3 and Phi-4, mini and larger. Llama's shape with fused matrices, a part of each head rotated."""

import math
from dataclasses import replace

import numpy as np

from mindbatch.architecture.architecture import Architecture, Rotary
from mindbatch.architecture.tensor_spec import Part
from mindbatch.config_json.forms import Config
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.rope import plain_frequencies, rotary_width
from mindbatch.config_json.sizes import same_windows
from mindbatch.models import glm, llama

LONG = ("longrope", "su", "yarn")  # transformers takes the older names for the first
LARGEST_FACTOR = 1e6
_FACTORS = ("short_factor", "long_factor")


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `phi3` configuration.

    With longrope all of a sequence's tokens have other frequencies once it is longer than the original
    context; here it may be as long as that and no longer, so that a token's key is computed once.
    """
    arch = llama.describe_family(reader, windows=same_windows(reader), rotary=_read_rotary)
    original = reader.positive("original_max_position_embeddings")
    if reader.value("rope_scaling"):
        return replace(arch, max_positions=min(arch.max_positions, original))
    return arch


def _read_rotary(reader: ConfigReader, head_dim: int, max_positions: int) -> Rotary:
    frequencies = plain_frequencies(reader.number("rope_theta"), rotary_width(reader, head_dim))
    scaling, pairs = reader.value("rope_scaling"), len(frequencies)
    if not scaling:
        return Rotary(tuple(map(float, frequencies)))
    original = reader.positive("original_max_position_embeddings")
    if not isinstance(scaling, dict) or not _is_long(scaling, original):
        reader.error("rope_scaling", f"must be null or {{type, {', '.join(_FACTORS)}}} with type {LONG[0]}")
    elif not all(_are_factors(scaling[key], pairs) for key in _FACTORS):
        reader.error("rope_scaling", f"short_factor and long_factor must be {pairs} numbers above 0 each")
    else:
        frequencies = frequencies / np.array(scaling["short_factor"], np.float32)
        return Rotary(tuple(map(float, frequencies)), _attention_factor(max_positions, original))
    return Rotary(tuple(map(float, frequencies)))


def _is_long(scaling: Config, original: int) -> bool:
    """True if it is longrope's, as transformers 4 wrote it or as 5 does, with the original context in it."""
    kinds = [scaling[key] for key in ("type", "rope_type") if key in scaling]
    original_positions = scaling.get("original_max_position_embeddings", original)
    keys = scaling.keys() - {"type", "rope_type", "original_max_position_embeddings"}
    return (
        bool(kinds)
        and keys == {*_FACTORS}
        and original_positions == original
        and all(kind in LONG for kind in kinds)
    )


def _are_factors(values: object, count: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) == count
        and all(type(value) in (int, float) and 0 < value < LARGEST_FACTOR for value in values)
    )


def _attention_factor(max_positions: int, original: int) -> float:
    """Factor of cosine and sine: Ding et al., "LongRoPE" (2024)."""
    if max_positions <= original or original < 2:
        return 1.0
    return math.sqrt(1 + math.log(max_positions / original) / math.log(original))


class Attention(llama.Attention):
    def projections(self, a: Architecture, source: str) -> tuple[Part, ...]:
        return llama.qkv_parts(a, f"{source}.qkv_proj.weight")


class Block(glm.Block):
    attention_type = Attention


MODEL = replace(llama.MODEL, describe=describe, tree=llama.with_blocks(Block))
