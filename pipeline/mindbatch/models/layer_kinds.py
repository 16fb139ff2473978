"""Layers of a model with a sliding window, by layer_types and the keys that came before it."""

from collections.abc import Sequence

from mindbatch.models.config_reader import ConfigReader

FULL, SLIDING = "full_attention", "sliding_attention"


def asked_window(reader: ConfigReader) -> int:
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
    if layers is None or (isinstance(layers, list) and all(type(layer) is int for layer in layers)):
        return layers
    reader.fault(key, "must be a list of layers, counted from 0")
    return None


def windows_by_kind(reader: ConfigReader, window: int, by_default: Sequence[str]) -> tuple[int, ...]:
    """Window of each layer, 0 for none: by layer_types, or where that is absent or null by default."""
    kinds = kinds_of_layers(reader, (FULL, SLIDING), by_default)
    if not window and SLIDING in kinds and kinds is not by_default:
        reader.fault("layer_types", "names layers with a sliding window, and there is none")
    return tuple(window if kind == SLIDING else 0 for kind in kinds)


def kinds_of_layers(
    reader: ConfigReader, known: Sequence[str], by_default: Sequence[str], key: str = "layer_types"
) -> Sequence[str]:
    """Kind of each layer: as the key says, or by default."""
    layers, kinds = len(by_default), reader.value(key)
    kinds = by_default if kinds is None else kinds
    if not isinstance(kinds, list) or len(kinds) != layers or any(str(kind) not in known for kind in kinds):
        reader.fault(key, f"must name {layers} layers, each one of {', '.join(sorted(known))}")
        return [known[0]] * layers
    return kinds


def recurrent_layers(reader: ConfigReader, kinds: Sequence[str], recurrent: str) -> tuple[int, ...]:
    """Layers of the recurrent kind, which are not all: how long a sequence is shows in keys and values."""
    layers = tuple(layer for layer, kind in enumerate(kinds) if kind == recurrent)
    if len(layers) == len(kinds):
        reader.fault("layer_types", f"must have at least one with {FULL}")
    return layers


def read_kernel(reader: ConfigReader, key: str) -> int:
    """Inputs of each output of a convolution; one alone would be none."""
    kernel = reader.positive(key)
    if kernel < 2:
        reader.fault(key, "must be at least 2")
    return max(kernel, 2)


def windows_by_pattern(reader: ConfigReader, every: int) -> tuple[int, ...]:
    """Windows where each layer has one but for every so many-th."""
    layers, window = reader.positive("num_hidden_layers"), reader.positive("sliding_window")
    return windows_by_kind(reader, window, [SLIDING if (i + 1) % every else FULL for i in range(layers)])
