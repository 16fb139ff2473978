"""apertus: Llama with norms of heads, and an MLP without a gate whose activation has learned slopes."""

from collections.abc import Sequence
from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.tensor_spec import Layout, Part
from mindbatch.config_json.forms import Config
from mindbatch.kernels.operations.dense import xielu
from mindbatch.layers.linear import ColumnLinear, RowLinear
from mindbatch.layers.rank import Module, Tensor, Tokens, declared
from mindbatch.models import llama

# Constants of transformers' XIELUActivation, saved with each layer and never trained.
BETA, EPSILON = 0.5, -1e-6
CONSTANTS = ("*.mlp.act_fn.beta", "*.mlp.act_fn.eps")


class Mlp(Module):
    """down(xielu(up(x))), with slopes of its own above and below zero."""

    def __init__(
        self, a: Architecture, source: str, up: Sequence[str], down: str, *, is_fused: bool = False
    ) -> None:
        self.up = ColumnLinear(Part(f"{source}.{up[0]}.weight", a.intermediate_size, a.hidden_size))
        self.positive = declared(Part(f"{source}.act_fn.alpha_p", 1), layout=Layout.FLOAT32)
        self.negative = declared(Part(f"{source}.act_fn.alpha_n", 1), layout=Layout.FLOAT32)
        self.down = RowLinear(Part(f"{source}.{down}.weight", a.hidden_size, a.intermediate_size))

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        up_TI = self.up(x_TH, tokens)
        active_TI = xielu(up_TI, self.positive, self.negative, beta=BETA, epsilon=EPSILON)
        return self.down(active_TI, tokens)


class Block(llama.Block):
    names = llama.LayerNames(
        attention_norm="attention_layernorm", mlp_norm="feedforward_layernorm", up=("up_proj",)
    )
    mlp_type = Mlp


ALWAYS: Config = {"hidden_act": "xielu", "qk_norm": True, "post_norm": False, "mlp_bias": False}
MODEL = replace(
    llama.relative(
        llama.with_blocks(Block), always=ALWAYS, bias_key="attention_bias", qk_norm=True, activation_key=""
    ),
    unused_tensors=(*llama.MODEL.unused_tensors, *CONSTANTS),
)
