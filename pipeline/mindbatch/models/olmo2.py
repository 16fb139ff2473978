"""olmo2: Llama's shape with norms after attention and MLP, not before; query and key are normed whole."""

from collections.abc import Callable

from mindbatch.architecture.architecture import Architecture
from mindbatch.layers.linear import AllHeadsNorm
from mindbatch.layers.rank import Module, Tensor, Tokens
from mindbatch.models import llama


class Attention(llama.Attention):
    def __init__(self, a: Architecture, source: str, layer: int, output: str) -> None:
        super().__init__(a, source, layer, output)
        self.has_norms = True
        self.q_norm = AllHeadsNorm(f"{source}.q_norm", a.heads, a.head_dim)
        self.k_norm = AllHeadsNorm(f"{source}.k_norm", a.kv_heads, a.head_dim, is_shared=True)


class Block(Module):
    """x + norm(attention(x)), then x + norm(mlp(x))."""

    attention_type: Callable[[Architecture, str, int, str], Module] = Attention

    def __init__(self, a: Architecture, layer: int) -> None:
        source = f"model.layers.{layer}"
        self.attention = self.attention_type(a, f"{source}.self_attn", layer, "o_proj")
        self.after_attention = llama.norm(a, f"{source}.post_attention_layernorm")
        self.mlp = llama.Mlp(a, f"{source}.mlp")
        self.after_mlp = llama.norm(a, f"{source}.post_feedforward_layernorm")

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        x_TH = x_TH + self.after_attention(self.attention(x_TH, tokens))
        return x_TH + self.after_mlp(self.mlp(x_TH, tokens))


MODEL = llama.relative(llama.with_blocks(Block), bias_key="attention_bias")
