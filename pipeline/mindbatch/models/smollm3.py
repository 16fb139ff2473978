"""smollm3: Llama's shape; some layers have no positions, and an optional window."""

from collections.abc import Sequence
from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json.forms import JsonValue
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.sizes import FULL, SLIDING, requested_window, windows_by_kind
from mindbatch.models import llama


def describe(reader: ConfigReader) -> Architecture:
    rotated = rotated_layers(reader, reader.raw("no_rope_layers"))
    arch = llama.MODEL.describe(reader)
    rotaries = tuple(arch.rotary if is_rotated else None for is_rotated in rotated)
    return replace(arch, windows=read_windows(reader, rotated), layer_rotaries=rotaries)


def rotated_layers(reader: ConfigReader, flags: JsonValue) -> Sequence[bool]:
    """Lists the layers with rotary positions: the 1s of flags, else all but every interval-th."""
    layers = reader.positive("num_hidden_layers")
    if flags is None:
        interval = reader.positive("no_rope_layer_interval")
        return [(layer + 1) % interval > 0 for layer in range(layers)]
    reader.ignore(["no_rope_layer_interval"])
    if not isinstance(flags, list) or len(flags) < layers or any(flag not in (0, 1) for flag in flags):
        reader.error("no_rope_layers", f"must have 1 (rotated) or 0 for each of {layers} layers")
        return [True] * layers
    return [flag == 1 for flag in flags[:layers]]


def read_windows(reader: ConfigReader, rotated: Sequence[bool]) -> tuple[int, ...]:
    """Sliding window of each layer: by layer_types if given, else of the layers without positions."""
    return windows_by_kind(
        reader, requested_window(reader), [FULL if is_rotated else SLIDING for is_rotated in rotated]
    )


MODEL = replace(llama.MODEL, describe=describe)
