"""glm_moe_dsa: GLM-5 in the positions of which its sparse attention chooses all: latent attention there.

An indexer chooses index_topk of the tokens that each one sees. Up to so many tokens these are all of them,
and the attention is DeepSeek-V3's; longer sequences are not run.
"""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json import experts
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.sizes import kinds_of_layers
from mindbatch.models import deepseek_v3, glm4_moe_lite

_KINDS = ("indexed_attention", "deepseek_sparse_attention")
"""Names of the one kind of layers that there is."""


def describe(reader: ConfigReader) -> Architecture:
    reader.needs("mlp_bias", [False])
    reader.needs("rope_interleave", [True])
    arch = deepseek_v3.describe_attention(reader)
    kinds_of_layers(reader, _KINDS, [_KINDS[0]] * arch.num_layers)
    sparse = glm4_moe_lite.read_sparse_layers(reader, arch.num_layers, first=None)
    return replace(
        arch,
        max_positions=min(arch.max_positions, reader.positive("index_topk")),
        experts=experts.read_scored_experts(reader, arch.num_layers, sparse),
    )


MODEL = replace(
    deepseek_v3.MODEL,
    describe=describe,
    # The indexers, and the layer that guesses a token more, behind the last one of the published size.
    unused_tensors=(
        *deepseek_v3.MODEL.unused_tensors,
        "model.layers.*.self_attn.indexer.*",
        "model.layers.78.*",
    ),
)
