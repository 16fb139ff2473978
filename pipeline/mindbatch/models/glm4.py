"""glm4: GLM-4 of 2025. As glm, and what attention and MLP add is normed before."""

from dataclasses import replace

from mindbatch.models import glm, llama


class Block(llama.FourNormBlock, glm.Block):
    """Four norms, around glm's MLP."""

    names = replace(
        glm.Block.names, after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"
    )


MODEL = replace(glm.MODEL, tree=llama.with_blocks(Block))
