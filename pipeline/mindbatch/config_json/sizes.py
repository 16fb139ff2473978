"""Sizes of a decoder, and the kinds of its layers: read from config.json by many types alike."""

from collections.abc import Sequence
from dataclasses import dataclass

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json.reader import ConfigReader

FULL, SLIDING = "full_attention", "sliding_attention"
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "quick_gelu": "quick_gelu",
}
NORM_EPSILON = 1e-5
"""Epsilon of norms where no key says it."""


@dataclass(frozen=True)
class SizeKeys:
    """Keys of config.json that a type has its sizes under.

    inner_is_wide: null is 4 times the hidden size.
    epsilon, activation, tied: empty where no key says it: then `NORM_EPSILON`, SiLU, and no.
    """

    vocab: str = "vocab_size"
    hidden: str = "hidden_size"
    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    inner: str = "intermediate_size"
    inner_is_wide: bool = False
    positions: str = "max_position_embeddings"
    epsilon: str = "layer_norm_epsilon"
    activation: str = "activation_function"
    tied: str = "tie_word_embeddings"


def read_sizes(
    reader: ConfigReader,
    keys: SizeKeys,
    *,
    head_dim: int = 0,
    default_inner: int | None = None,
    default_positions: int | None = None,
    bias: bool = False,
) -> Architecture:
    """Reads what config.json of every decoder has, under the keys of its type.

    head_dim: 0 where the heads share the hidden size. default_inner, default_positions: in place of null;
    None: it must not be. bias: of all matrices of a layer.
    """
    hidden, heads = reader.positive(keys.hidden), reader.positive(keys.heads)
    if not head_dim and hidden % heads:
        reader.error(keys.hidden, f"must be divisible by {keys.heads}={heads}")
    if keys.inner_is_wide:
        default_inner = 4 * hidden
    return Architecture(
        vocab_size=reader.positive(keys.vocab),
        hidden_size=hidden,
        num_layers=reader.positive(keys.layers),
        heads=heads,
        head_dim=head_dim or max(1, hidden // heads),
        intermediate_size=reader.positive(keys.inner, default_inner),
        max_positions=reader.positive(keys.positions, default_positions),
        norm_epsilon=reader.number(keys.epsilon) if keys.epsilon else NORM_EPSILON,
        activation=reader.choice(keys.activation, ACTIVATIONS) if keys.activation else "silu",
        tied=bool(keys.tied) and reader.flag(keys.tied),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
    )


def requested_window(reader: ConfigReader) -> int:
    """The window that is asked for: 0 without use_sliding_window, or with sliding_window null."""
    is_given = reader.raw("sliding_window") is not None
    return reader.positive("sliding_window") if reader.flag("use_sliding_window") and is_given else 0


def same_windows(reader: ConfigReader) -> tuple[int, ...]:
    """The window of all layers; sliding_window null is none."""
    window = 0 if reader.raw("sliding_window") is None else reader.positive("sliding_window")
    return (window,) * reader.positive("num_hidden_layers")


def layer_numbers(reader: ConfigReader, key: str) -> Sequence[int] | None:
    """The layers that a key lists; None where it is absent or null."""
    layers = reader.raw(key)
    if layers is None:
        return None
    numbers = [layer for layer in layers if type(layer) is int] if isinstance(layers, list) else None
    if numbers == layers:
        return numbers
    reader.error(key, "must be a list of layers, counted from 0")
    return None


def windows_by_kind(reader: ConfigReader, window: int, by_default: Sequence[str]) -> tuple[int, ...]:
    """Window of each layer, 0 for none: by layer_types, or where that is absent or null by default."""
    kinds = kinds_of_layers(reader, (FULL, SLIDING), by_default)
    if not window and SLIDING in kinds and kinds is not by_default:
        reader.error("layer_types", "names layers with a sliding window, and there is none")
    return tuple(window if kind == SLIDING else 0 for kind in kinds)


def kinds_of_layers(
    reader: ConfigReader, known: Sequence[str], by_default: Sequence[str], key: str = "layer_types"
) -> Sequence[str]:
    """Kind of each layer: as the key says, or by default."""
    layers, kinds = len(by_default), reader.value(key)
    if kinds is None:
        return by_default
    names = [kind for kind in kinds if isinstance(kind, str)] if isinstance(kinds, list) else []
    if names != kinds or len(names) != layers or not {*names} <= {*known}:
        reader.error(key, f"must name {layers} layers, each one of {', '.join(sorted(known))}")
        return [known[0]] * layers
    return names


def recurrent_layers(reader: ConfigReader, kinds: Sequence[str], recurrent: str) -> tuple[int, ...]:
    """Layers of the recurrent kind, which are not all: how long a sequence is shows in keys and values."""
    layers = tuple(layer for layer, kind in enumerate(kinds) if kind == recurrent)
    if len(layers) == len(kinds):
        reader.error("layer_types", f"must have at least one with {FULL}")
    return layers


def read_kernel(reader: ConfigReader, key: str) -> int:
    """Inputs of each output of a convolution; one alone would be none."""
    kernel = reader.positive(key)
    if kernel < 2:
        reader.error(key, "must be at least 2")
    return max(kernel, 2)


def windows_by_pattern(reader: ConfigReader, every: int) -> tuple[int, ...]:
    """Windows where each layer has one but for every so many-th."""
    layers, window = reader.positive("num_hidden_layers"), reader.positive("sliding_window")
    return windows_by_kind(reader, window, [SLIDING if (i + 1) % every else FULL for i in range(layers)])
