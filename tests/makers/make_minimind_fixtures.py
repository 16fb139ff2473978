"""Writes tests/numerics/fixtures/minimind.npz: tiny mixtures of experts as MiniMind exports them.

transformers has no class of them. Those of MiniMind-3 are loaded as Qwen3Moe, the same network by the same
names; those of 2025 as Llama, whose MLPs are replaced by `Mixture`. See make_model_fixtures.py.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from model_folders import MINIMIND, random_tensor, stored, write_folder
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaMLP

from make_model_fixtures import GROUPED, Case, cases_of, load, spread, write_references
from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.model_spec.registry import describe, tensor_specs

SIZES = GROUPED | {"tie_word_embeddings": True, "rope_theta": 1e6, "num_experts_per_tok": 2}
OWN = {"model_type": "minimind", "architectures": ["MiniMindForCausalLM"], "use_moe": True, "dropout": 0.0}
OWN |= {"flash_attn": True, "hidden_act": "silu", "inference_rope_scaling": False}
OF_3: dict[str, dict[str, Any]] = {
    "minimind_3_moe": {"num_experts_per_tok": 1},
    "minimind_3_moe_plain": {"norm_topk_prob": False, "num_experts": 7, "tie_word_embeddings": False},
    "minimind_3_moe_odd": {"moe_intermediate_size": 18, "num_experts": 5, "head_dim": 10},
}
OF_2: dict[str, dict[str, Any]] = {
    "minimind_moe": {},
    "minimind_moe_one": {"num_experts_per_tok": 1, "n_routed_experts": 5, "n_shared_experts": 0},
    "minimind_moe_odd": {"norm_topk_prob": False, "n_shared_experts": 2, "intermediate_size": 34},
}
DTYPES = {"minimind_3_moe": "float16", "minimind_moe": "bfloat16"}
SHARDS = {"minimind_3_moe_odd": 2, "minimind_moe_odd": 3}


def case_of_3(name: str, settings: dict[str, Any]) -> Case:
    """A folder of MiniMind-3, and how Qwen3Moe loads it."""
    sizes = SIZES | {"head_dim": 8, "num_experts": 4, "moe_intermediate_size": 56, "norm_topk_prob": True}
    sizes |= settings
    [case] = cases_of({name: sizes | {"model_type": "qwen3_moe"}}, DTYPES, SHARDS).values()

    def load_as_qwen3(folder: Path) -> PreTrainedModel:
        with tempfile.TemporaryDirectory() as copy:
            write_folder(Path(copy), case.description)
            return load(Path(copy))

    own = OWN | {"rope_scaling": None, "router_aux_loss_coef": 5e-4}
    return Case(case.description | {"config": sizes | own}, load_as_qwen3)


class Mixture(nn.Module):
    """What MiniMind's MOEFeedForward of 2025 computes, one row after another."""

    def __init__(self, config: LlamaConfig, own: dict[str, Any]) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, own["n_routed_experts"], bias=False)
        self.experts = nn.ModuleList(LlamaMLP(config) for _ in range(own["n_routed_experts"]))
        if own["n_shared_experts"]:
            self.shared_experts = nn.ModuleList(LlamaMLP(config) for _ in range(own["n_shared_experts"]))
        self.chosen = own["num_experts_per_tok"]
        self.is_normalised = own["norm_topk_prob"] and self.chosen > 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best = self.gate(x).softmax(-1).topk(self.chosen)
        weights = best.values / best.values.sum(-1, keepdim=True) if self.is_normalised else best.values
        every = torch.stack([expert(x) for expert in self.experts], -2)
        chosen = every.gather(-2, best.indices[..., None].expand(*best.indices.shape, x.shape[-1]))
        y = (chosen * weights[..., None]).sum(-2)
        return y + sum(network(x) for network in getattr(self, "shared_experts", ()))


def case_of_2(name: str, settings: dict[str, Any]) -> Case:
    """A folder of MiniMind of 2025."""
    of_experts = {"n_routed_experts": 4, "n_shared_experts": 1, "norm_topk_prob": True}
    config = SIZES | OWN | of_experts | {"scoring_func": "softmax", "aux_loss_alpha": 0.1, "seq_aux": True}
    config |= settings
    shapes = source_shapes(tensor_specs(describe(config)))
    tensors = {key: [[*shape], spread("", key, [*shape], True)] for key, shape in shapes.items()}
    dtype = DTYPES.get(name, "float32")

    def load_as_llama(folder: Path) -> PreTrainedModel:
        names = (*GROUPED, "tie_word_embeddings", "rope_theta")
        network = LlamaForCausalLM(LlamaConfig(**{key: config[key] for key in names}))
        for layer in network.model.layers:
            layer.mlp = Mixture(network.config, config)
        state = {key: _floats(key, shape, width, dtype) for key, (shape, width) in tensors.items()}
        missing, unexpected = network.load_state_dict(state, strict=False)
        assert (missing, unexpected) == (["lm_head.weight"], [])
        network.tie_weights()
        return network.eval()

    description = {"config": config, "tensors": tensors, "dtype": dtype, "shards": SHARDS.get(name, 1)}
    return Case(description, load_as_llama)


def _floats(name: str, shape: list[int], width: float, dtype: str) -> torch.Tensor:
    """A tensor as float32 has it after it was stored."""
    kept = torch.from_numpy(stored(random_tensor(name, shape, width), dtype))
    return (kept.view(torch.bfloat16) if dtype == "bfloat16" else kept).float()


if __name__ == "__main__":
    cases = {name: case_of_3(name, settings) for name, settings in OF_3.items()}
    write_references(MINIMIND, cases | {name: case_of_2(name, settings) for name, settings in OF_2.items()})
