"""glm4: GLM-4 of 2025. As glm, and what attention and MLP add is normed before."""

from dataclasses import replace

from mindbatch.models import glm, llama
from mindbatch.models.architecture import Architecture


class Block(llama.FourNormBlock, glm.Block):
    """Four norms, around glm's MLP."""

    def __init__(self, a: Architecture, layer: int) -> None:
        super().__init__(a, layer)
        source = f"model.layers.{layer}"
        self.after_attention = llama.norm(a, f"{source}.post_self_attn_layernorm")
        self.after_mlp = llama.norm(a, f"{source}.post_mlp_layernorm")


MODEL = replace(glm.MODEL, tree=llama.with_blocks(Block))
