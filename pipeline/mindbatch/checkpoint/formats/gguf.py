"""llama.cpp's GGUF files, which are not read."""

from mindbatch.checkpoint.formats.weight_format import WeightFormat

GGUF = WeightFormat(
    name="gguf",
    title="llama.cpp (GGUF)",
    suffixes=(".gguf",),
    refusal=(
        "is of llama.cpp (GGUF), whose quantised weights are not read; take the folder of the original "
        "model, with config.json and safetensors"
    ),
)
