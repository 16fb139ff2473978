"""glm4_moe_lite: GLM-4.7-Flash. DeepSeek-V3 in other sizes, with a list of the layers that have experts."""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json import experts
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.sizes import kinds_of_layers
from mindbatch.models import deepseek_v3

_KINDS = DENSE, SPARSE = "dense", "sparse"


def describe(reader: ConfigReader) -> Architecture:
    arch = deepseek_v3.describe_attention(reader)
    sparse = read_sparse_layers(reader, arch.num_layers, first=1)
    return replace(arch, experts=experts.read_scored_experts(reader, arch.num_layers, sparse))


def read_sparse_layers(reader: ConfigReader, layers: int, first: int | None) -> tuple[int, ...]:
    """Layers with experts: by mlp_layer_types, else all behind the first ones.

    first: how many these must be, as the type's class has it; None: any number.
    """
    if reader.value("mlp_layer_types") is None:
        if first is not None:
            reader.needs("first_k_dense_replace", [first])
        return experts.layers_behind(reader, layers)
    reader.ignore(["first_k_dense_replace"])
    kinds = kinds_of_layers(reader, _KINDS, [DENSE] * layers, "mlp_layer_types")
    return tuple(layer for layer, kind in enumerate(kinds) if kind == SPARSE)


MODEL = replace(
    deepseek_v3.MODEL,
    describe=describe,
    # The layer that guesses a token more, behind the last one of the published size.
    unused_tensors=(*deepseek_v3.MODEL.unused_tensors, "model.layers.47.*"),
)
