"""llama.cpp's GGUF files, which are run as they are; see `checkpoint.gguf`."""

from mindbatch.checkpoint.formats.weight_format import WeightFormat

SUFFIX = ".gguf"
POINTER = "gguf.json"
"""In a folder that is made of such files: their names."""

NOT_TAKEN = "is made of llama.cpp's files, which only tasks that run a model take, with model.provider=native"

GGUF = WeightFormat(
    name="gguf",
    title="llama.cpp (GGUF)",
    suffixes=(SUFFIX,),
    refusal=(
        "is of llama.cpp (GGUF); give the file itself where a model is run or resharded, or take the folder "
        "of the original model, with config.json and safetensors"
    ),
)
