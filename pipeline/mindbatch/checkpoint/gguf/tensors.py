"""The tensors of a model by Hugging Face's names: where a file has each, and how it was changed.

Source: llama.cpp's conversion from Hugging Face's folders.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from mindbatch.checkpoint.error_lines import shown
from mindbatch.checkpoint.formats.floats import Array, FloatArray
from mindbatch.io.errors import CheckpointError


class TensorSource(NamedTuple):
    """name: in the file. shape: as the model has it. first: its first row there.

    heads: number of heads whose rows were put in pairs. is_less_one: True if 1 was added to its numbers.
    """

    name: str
    shape: tuple[int, ...]
    first: int = 0
    heads: int = 0
    is_less_one: bool = False

    def error(self, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """Explains what is wrong with the file's tensor, of which these are the shapes; None if it fits."""
        stored = shapes.get(self.name)
        is_of_stack = stored is not None and len(stored) == 3 and stored[1:] == self.shape
        if stored != self.shape and not is_of_stack:
            return f"tensor {shown(self.name)}: {_stored(stored)}; needed is {[*self.shape]}"
        if self.heads and self.shape[0] % (2 * self.heads):
            return f"tensor {shown(self.name)}: {self.shape[0]} rows of {self.heads} heads"
        return None

    def stored_rows(self, rows: slice) -> Array:
        """The rows of the file that are these, in order."""
        numbers = np.arange(rows.start, rows.stop)
        if self.heads:  # rows 2 * i and 2 * i + 1 of a head were i and i + half
            size = self.shape[0] // self.heads
            head, within = np.divmod(numbers, size)
            half, pair = np.divmod(within, size // 2)
            numbers = head * size + 2 * pair + half
        return numbers + self.first


def _stored(shape: tuple[int, ...] | None) -> str:
    return "is missing" if shape is None else f"has shape {[*shape]}"


class StackPart(NamedTuple):
    """A tensor of the file, of which each matrix of a stack takes so many rows."""

    name: str
    rows: int
    inputs: int


class AssembledSource(NamedTuple):
    """A tensor of several of the file. joined: makes a matrix of what the parts have of it."""

    shape: tuple[int, ...]
    parts: tuple[StackPart, ...]
    joined: Callable[..., FloatArray]

    def error(self, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """As of `TensorSource`."""
        count = self.shape[0] if len(self.shape) > 2 else 1
        for name, rows, inputs in self.parts:
            stored = shapes.get(name)
            if stored is None or (math.prod(stored[:-1]), stored[-1]) != (count * rows, inputs):
                return f"tensor {shown(name)}: {_stored(stored)}; needed are {count * rows} rows of {inputs}"
        return None


TensorSources = dict[str, "TensorSource | AssembledSource"]
"""Where the tensors of a model are, by the model's names."""


def interleaved(evens: FloatArray, odds: FloatArray) -> FloatArray:
    """Columns of one and of the other in turns."""
    columns: FloatArray = np.stack((evens, odds), axis=2).reshape(len(evens), -1)
    return columns


def joined_heads(keys: FloatArray, values: FloatArray, heads: int, width: int) -> FloatArray:
    """Up-projections of a latent of this width: of a head's keys, transposed in the file, and its values."""
    of_keys = keys.reshape(heads, width, -1).swapaxes(1, 2)
    both: FloatArray = np.concatenate((of_keys, values.reshape(heads, -1, width)), axis=1).reshape(-1, width)
    return both


OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
}
SEPARATE = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
FUSED = {"ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"}
PLAIN = {**_ATTENTION, **SEPARATE}
PLAIN_FUSED = {**_ATTENTION, **FUSED}
GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
LATENT = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
}
SINKS = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
}
GLM_NORMS = {"post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"}
_MAX_EXPERTS = 1 << 14
_LAYER_TENSOR = re.compile(r"blk\.(\d{1,4})\.([a-z_]+)\.(weight|bias)")


class ExpertParts(NamedTuple):
    """Names of the parts of a layer's experts, each below `block`. router: of the matrix that chooses."""

    block: str
    router: str
    gate: str
    up: str
    down: str


def tensor_sources(
    shapes: Mapping[str, tuple[int, ...]],
    names: Mapping[str, str],
    *,
    heads: Mapping[str, int],
    has_norms_plus_one: bool = False,
    experts: ExpertParts | None = None,
) -> TensorSources:
    """Finds the tensors. Those of a file that have no other name keep theirs, so that they are refused.

    shapes: of the file's tensors by name.
    names: by the name of a part of a layer in the file, with or without its end, that in the folder.
    heads: by that name, the number of heads whose rows were put in pairs.
    has_norms_plus_one: True if 1 was added to the weights of norms.
    """
    sources: TensorSources = {}
    for name, shape in shapes.items():
        match = _LAYER_TENSOR.fullmatch(name)
        layer, part, end = match.groups() if match else ("", "", "")
        if experts is not None and end == "weight" and (within := _expert_names(experts, part)):
            sources |= _of_experts(name, shape, f"model.layers.{layer}.{experts.block}", within)
            continue
        own = OUTSIDE.get(name)
        if own is None and f"{part}.{end}" in names:
            own = f"model.layers.{layer}.{names[f'{part}.{end}']}"
        elif own is None and part in names:
            own = f"model.layers.{layer}.{names[part]}.{end}"
        is_norm = has_norms_plus_one and "norm" in name
        sources[own or name] = TensorSource(name, shape, heads=heads.get(part, 0), is_less_one=is_norm)
    return sources


def _expert_names(experts: ExpertParts, part: str) -> Callable[[int], str] | None:
    """Names a matrix of one expert, or the router, by its number; None for other parts."""
    ends = {"ffn_gate_exps": experts.gate, "ffn_up_exps": experts.up, "ffn_down_exps": experts.down}
    if part in ends:
        return lambda number: f"experts.{number}.{ends[part]}.weight"
    return (lambda number: f"{experts.router}.weight") if part == "ffn_gate_inp" else None


def _of_experts(
    name: str, shape: tuple[int, ...], block: str, within: Callable[[int], str]
) -> Iterator[tuple[str, TensorSource]]:
    if len(shape) < 3:
        yield f"{block}.{within(0)}", TensorSource(name, shape)
        return
    count, outputs, inputs = shape
    if count > _MAX_EXPERTS:
        raise CheckpointError(
            f"tensor {shown(name)} is of {count} experts; at most {_MAX_EXPERTS} are allowed"
        )
    for number in range(count):
        yield f"{block}.{within(number)}", TensorSource(name, (outputs, inputs), number * outputs)
