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
    """The keys of config.json under which a type has its sizes."""

    vocab: str = "vocab_size"
    hidden: str = "hidden_size"
    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    inner: str = "intermediate_size"
    inner_is_wide: bool = False
    """True if a null inner size is 4 times the hidden size."""
    positions: str = "max_position_embeddings"
    epsilon: str = "layer_norm_epsilon"
    activation: str = "activation_function"
    tied: str = "tie_word_embeddings"
    """Empty, as epsilon and activation may be, where the type has no such key: then it is false,
    `NORM_EPSILON` and SiLU."""


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

    head_dim: 0 if the heads divide the hidden size among them.
    default_inner, default_positions: values for null; without a default null is refused.
    bias: all matrices of a layer have biases.
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
    """Reads the sliding window; 0 without use_sliding_window, or with sliding_window null."""
    is_given = reader.raw("sliding_window") is not None
    return reader.positive("sliding_window") if reader.flag("use_sliding_window") and is_given else 0


def same_windows(reader: ConfigReader) -> tuple[int, ...]:
    """Reads one window for all layers; sliding_window null is none."""
    window = 0 if reader.raw("sliding_window") is None else reader.positive("sliding_window")
    return (window,) * reader.positive("num_hidden_layers")


def layer_numbers(reader: ConfigReader, key: str) -> Sequence[int] | None:
    """Reads a list of layers; None if the key is absent or null."""
    layers = reader.raw(key)
    if layers is None:
        return None
    numbers = [layer for layer in layers if type(layer) is int] if isinstance(layers, list) else None
    if numbers == layers:
        return numbers
    reader.error(key, "must be a list of layers, counted from 0")
    return None


def windows_by_kind(reader: ConfigReader, window: int, by_default: Sequence[str]) -> tuple[int, ...]:
    """Reads the window of each layer, 0 for none, from layer_types or else from the default kinds."""
    kinds = kinds_of_layers(reader, (FULL, SLIDING), by_default)
    if not window and SLIDING in kinds and kinds is not by_default:
        reader.error("layer_types", "names layers with a sliding window, and there is none")
    return tuple(window if kind == SLIDING else 0 for kind in kinds)


def kinds_of_layers(
    reader: ConfigReader, known: Sequence[str], by_default: Sequence[str], key: str = "layer_types"
) -> Sequence[str]:
    """Reads the kind of each layer; by_default if the key is absent or null."""
    layers, kinds = len(by_default), reader.value(key)
    if kinds is None:
        return by_default
    names = [kind for kind in kinds if isinstance(kind, str)] if isinstance(kinds, list) else []
    if names != kinds or len(names) != layers or not {*names} <= {*known}:
        reader.error(key, f"must name {layers} layers, each one of {', '.join(sorted(known))}")
        return [known[0]] * layers
    return names


def recurrent_layers(reader: ConfigReader, kinds: Sequence[str], recurrent: str) -> tuple[int, ...]:
    """Lists the layers of the recurrent kind; at least one must have keys and values."""
    layers = tuple(layer for layer, kind in enumerate(kinds) if kind == recurrent)
    if len(layers) == len(kinds):
        reader.error("layer_types", f"must have at least one with {FULL}")
    return layers


def read_kernel(reader: ConfigReader, key: str) -> int:
    """Reads the kernel size of a convolution, at least 2."""
    kernel = reader.positive(key)
    if kernel < 2:
        reader.error(key, "must be at least 2")
    return max(kernel, 2)


def windows_by_pattern(reader: ConfigReader, every: int) -> tuple[int, ...]:
    """Reads windows of which every `every`-th layer has none."""
    layers, window = reader.positive("num_hidden_layers"), reader.positive("sliding_window")
    return windows_by_kind(reader, window, [SLIDING if (i + 1) % every else FULL for i in range(layers)])
