"""starcoder2: Llama's attention with windows, between layer norms, and a plain MLP; biases on everything."""

from mindbatch.config_json.sizes import same_windows
from mindbatch.layers.linear import LayerNorm
from mindbatch.models import llama


class Block(llama.Block):
    names, norm_type = llama.LayerNames(up=("c_fc",), down="c_proj"), LayerNorm


MODEL = llama.relative(
    llama.with_blocks(Block, LayerNorm),
    windows=same_windows,
    always={"mlp_type": "default", "norm_type": "layer_norm"},
    bias_key="use_bias",
    mlp_bias="use_bias",
    epsilon_key="norm_epsilon",
)
