"""safetensors, the format of Hugging Face's folders and of MindFormers' Checkpoint 2.0."""

from mindbatch.checkpoint.formats.weight_format import WeightFormat, lazily

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
MAP_NAME = "param_name_map.json"
"""The index of MindSpore's unified_safetensors."""
_ASCEND_INDEXES = "quant_model_weight*.safetensors.index.json"
"""Names of msModelSlim's quantised folders."""

SAFETENSORS = WeightFormat(
    name="safetensors",
    title="safetensors",
    suffixes=(".safetensors",),
    model_files=(SINGLE_NAME, INDEX_NAME, _ASCEND_INDEXES, "quant_model_weight*.safetensors"),
    indexes=(INDEX_NAME, MAP_NAME, _ASCEND_INDEXES),
    open=lazily("safetensors_file", "open_safetensors"),
    lay_out=lazily("safetensors_file", "safetensors_layout"),
    rank_file=SINGLE_NAME,
)
