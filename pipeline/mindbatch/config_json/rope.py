"""Rotary frequencies and their scalings, as Hugging Face configurations describe them.

Sources: Su et al., "RoFormer" (2021); linear: Chen et al., "Extending Context Window of LLMs via Positional
Interpolation" (2023); llama3: the Llama 3.1 release; yarn: Peng et al., "YaRN" (2023).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mindbatch.architecture.architecture import Rotary
from mindbatch.checkpoint.error_lines import first_lines, shown
from mindbatch.config_json.reader import ConfigReader

# float32 like the networks were trained with: at long positions the rounding of a frequency shows.
Frequencies = npt.NDArray[np.float32]

RopeSettings = dict[str, Any]
"""Parameters of a scaling, each taken out as it is read: numbers, or what `float` refuses."""

Scaled = tuple[Frequencies, float]
"""Frequencies, and the factor on cosine and sine."""

RotaryReader = Callable[[ConfigReader, int, int], Rotary]
"""From a configuration, the size of a head, and the positions that the model has."""


_OF_IMAGES = ("mrope_interleaved", "mrope_section")
"""How images' three positions share the frequencies; a text's are one position."""


def read_rotary(reader: ConfigReader, head_dim: int, max_positions: int) -> Rotary:
    """The rotary embedding of a configuration, of its rope_theta and rope_scaling.

    All of each head is rotated: transformers' Llama and most of its relatives cannot do with a part, either.
    Errors go to the reader: an unknown rope_type, or a scaling without its parameters.
    """
    reader.needs("partial_rotary_factor", [1.0])
    return read_rotary_of(reader, head_dim, max_positions)


def read_partial_rotary(reader: ConfigReader, head_dim: int, max_positions: int) -> Rotary:
    """Reads a rotary embedding of that part of each head which partial_rotary_factor says."""
    return read_rotary_of(reader, rotary_width(reader, head_dim), max_positions)


def read_rotary_of(reader: ConfigReader, width: int, max_positions: int) -> Rotary:
    """The rotary embedding of `width` numbers of a head."""
    key, theta = "rope_scaling", reader.number("rope_theta")
    settings = reader.raw(key) or {}  # null is none, whatever the class takes for an absent one
    if not isinstance(settings, Mapping):
        reader.error(key, "must be null or an object with a rope_type")
        settings = {}
    scaling = {name: settings[name] for name in settings if name not in _OF_IMAGES}
    old_kind = scaling.pop("type", None)
    kind = scaling.pop("rope_type", None) or old_kind or "default"
    if "factor" in scaling and not {"rope_type", "type"} & settings.keys():
        reader.error(key, "has a factor and no rope_type")
    frequencies = plain_frequencies(theta, width)
    if not isinstance(kind, str) or kind not in SCALINGS:
        reader.error(key, f"rope_type {kind!r} is not supported; allowed: {', '.join(sorted(SCALINGS))}")
        return Rotary(tuple(frequencies))
    try:
        with np.errstate(all="raise"):
            scaled, factor = SCALINGS[kind](frequencies, scaling, theta, max_positions)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        reader.error(key, f"rope_type {kind!r} needs valid parameters: {error}")
        return Rotary(tuple(frequencies))
    if scaling:
        unknown = first_lines(sorted(map(shown, scaling)), str, noun="parameters")
        reader.error(key, f"unknown parameters of rope_type {kind!r}: {', '.join(unknown)}")
    return Rotary(tuple(float(value) for value in scaled), factor)


def plain_frequencies(theta: float, rotary_dim: int) -> Frequencies:
    """Computes the inverse frequency of each pair among `rotary_dim` numbers of a head.

    The power is of float64 and rounded once: the digits of NumPy's in float32 depend on the processor.
    """
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32)
    exponents /= np.float32(2 * len(exponents))
    powers = np.power(np.float32(theta), exponents, dtype=np.float64)
    return np.float32(1) / powers.astype(np.float32)


def plain_rotary(theta: float, width: int, *, is_interleaved: bool = False) -> Rotary:
    """The rotary embedding of `width` numbers of a head, unscaled."""
    return Rotary(tuple(map(float, plain_frequencies(theta, width))), is_interleaved=is_interleaved)


def rotary_width(reader: ConfigReader, head_dim: int, key: str = "partial_rotary_factor") -> int:
    """Counts the numbers of a head that are rotated, by the factor that `key` holds."""
    width = int(head_dim * min(reader.number(key), 1.0))
    if width < 2 or width % 2 or reader.number(key) > 1:
        reader.error(key, f"must leave an even number of a head's {head_dim} numbers")
        return 2
    return width


def _default(frequencies: Frequencies, scaling: RopeSettings, theta: float, max_positions: int) -> Scaled:
    scaling.pop("factor", None)
    return frequencies, 1.0


def _linear(frequencies: Frequencies, scaling: RopeSettings, theta: float, max_positions: int) -> Scaled:
    return frequencies / float(scaling.pop("factor")), 1.0


def _llama3(frequencies: Frequencies, scaling: RopeSettings, theta: float, max_positions: int) -> Scaled:
    factor, low, high, original = (
        float(scaling.pop(name))
        for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    wavelengths = 2 * math.pi / frequencies
    # 0 where a wave is longer than original / low (slowed down in full), 1 where it is shorter than
    # original / high (left alone), and a straight line between.
    if low == high:  # without a line between, as Llama 4 has it
        kept = (original / wavelengths >= low).astype(np.float32)
    else:
        kept = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    return frequencies * kept + frequencies / factor * (1 - kept), 1.0


def _yarn(frequencies: Frequencies, scaling: RopeSettings, theta: float, max_positions: int) -> Scaled:
    factor = float(scaling.pop("factor"))
    original = float(scaling.pop("original_max_position_embeddings", None) or max_positions)
    fast, slow = float(scaling.pop("beta_fast", None) or 32), float(scaling.pop("beta_slow", None) or 1)
    attention = scaling.pop("attention_factor", None)
    truncate = scaling.pop("truncate", True)
    for name in ("finetuned", "attn_factor", "extrapolation_factor"):  # which transformers does not read
        scaling.pop(name, None)
    attention = _yarn_attention(factor, scaling) if attention is None else float(attention)
    pairs = len(frequencies)

    def pair_with(rotations: float) -> float:
        """The (fractional) pair that turns `rotations` times over the original context."""
        return pairs * math.log(original / (rotations * 2 * math.pi)) / math.log(theta)

    low, high = pair_with(fast), pair_with(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    slowed = np.clip((np.arange(pairs) - low) / (high - low if high != low else 0.001), 0.0, 1.0)
    return frequencies * (1 - slowed) + frequencies / factor * slowed, attention


def _yarn_attention(factor: float, scaling: RopeSettings) -> float:
    weight, all_dim = scaling.pop("mscale", None), scaling.pop("mscale_all_dim", None)
    if weight and all_dim:
        return yarn_scale(factor, float(weight)) / yarn_scale(factor, float(all_dim))
    return yarn_scale(factor, 1.0)


def yarn_scale(factor: float, weight: float) -> float:
    """Factor of YaRN on attention, for a context so many times as long."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


SCALINGS: Mapping[str, Callable[..., Scaled]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
