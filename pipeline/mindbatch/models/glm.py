"""glm: GLM-4 of 2024. Half of each head rotated, in pairs of neighbours; gate and up in one tensor."""

from mindbatch.config_json.rope import read_partial_rotary
from mindbatch.models import llama


class Block(llama.Block):
    """Llama's, whose gate and up are one tensor of the checkpoint."""

    names = llama.LayerNames(up=("gate_up_proj",), is_fused=True)


MODEL = llama.relative(
    llama.with_blocks(Block), qkv_bias="attention_bias", rotary=read_partial_rotary, is_interleaved=True
)
