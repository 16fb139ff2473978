"""qwen2: Llama's shape with biases on query, key and value, and an optional window on the upper layers."""

from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.sizes import FULL, SLIDING, requested_window, windows_by_kind
from mindbatch.models import llama


def read_windows(reader: ConfigReader) -> tuple[int, ...]:
    """Sliding window of each layer: layer_types if given, else every layer from max_window_layers on."""
    layers, window = reader.positive("num_hidden_layers"), requested_window(reader)
    first = reader.value("max_window_layers")
    if isinstance(first, bool) or not isinstance(first, int):
        reader.error("max_window_layers", "must be a whole number")
        first = layers
    return windows_by_kind(reader, window, [FULL if layer < first else SLIDING for layer in range(layers)])


MODEL = llama.relative(windows=read_windows, qkv_bias=True)
