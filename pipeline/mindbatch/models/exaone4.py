"""exaone4: OLMo 2's blocks with norms of heads; beside layers with a window, the others have no positions."""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.sizes import FULL, windows_by_kind, windows_by_pattern
from mindbatch.models import llama, olmo2


def describe(reader: ConfigReader) -> Architecture:
    arch = llama.describe_family(reader, qk_norm=True)
    if reader.raw("sliding_window") is None:
        reader.ignore(["sliding_window_pattern"])
        return replace(arch, windows=windows_by_kind(reader, 0, [FULL] * arch.num_layers))
    windows = read_windows(reader)
    return replace(arch, windows=windows, layer_rotaries=tuple(arch.rotary if w else None for w in windows))


def read_windows(reader: ConfigReader) -> tuple[int, ...]:
    """Window of each layer: by layer_types, else of all but every sliding_window_pattern-th."""
    if reader.value("layer_types") is None:
        return windows_by_pattern(reader, reader.positive("sliding_window_pattern"))
    reader.ignore(["sliding_window_pattern"])  # LLLG in published files, which is what their layer_types say
    return windows_by_pattern(reader, 1)


class Block(olmo2.Block):
    attention_type = llama.Attention


MODEL = replace(llama.MODEL, describe=describe, tree=llama.with_blocks(Block))
