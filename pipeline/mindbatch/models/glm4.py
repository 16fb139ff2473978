"""glm4: GLM-4 of 2025. As glm, and what attention and MLP add is normed before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mindbatch.layers.tokens import Tokens
from mindbatch.models import glm, llama
from mindbatch.models.architecture import Architecture


class Block(glm.Block):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x)))."""

    def __init__(self, a: Architecture, layer: int) -> None:
        super().__init__(a, layer)
        source = f"model.layers.{layer}"
        self.after_attention = llama.norm(a, f"{source}.post_self_attn_layernorm")
        self.after_mlp = llama.norm(a, f"{source}.post_mlp_layernorm")

    def forward(self, x_TH: Any, tokens: Tokens) -> Any:
        x_TH = x_TH + self.after_attention(self.attention(self.attention_norm(x_TH), tokens))
        return x_TH + self.after_mlp(self.mlp(self.mlp_norm(x_TH), tokens))


class Model(llama.Model):
    """Llama's ends around glm's blocks, which norm what attention and MLP add, too."""

    block = Block


MODEL = replace(glm.MODEL, tree=Model)
