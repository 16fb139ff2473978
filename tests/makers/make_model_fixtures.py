"""Writes tests/numerics/fixtures/models.npz and rope.json: what transformers computes for tiny random models.

    PYTHON tests/makers make_model_fixtures [CASE ...]

PYTHON has torch and transformers 4.57; the tests need neither. Weights are not stored:
tests/numerics/model_folders.py makes them again from the tensors' names.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model_folders import FIXTURE, write_folder
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

ROPE_FIXTURE = Path(__file__).parents[1] / "unit/config_json/rope.json"
STEPS, PROMPTS, LONGEST = 64, 16, 30
LEAST_GAP = 2e-3
"""Between the two largest logits at every greedy step: far above what float32 rounding can turn round."""
GROUPED: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
CASES: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "gpt2_scaled": {
        "model_type": "gpt2",
        "vocab_size": 97,
        "n_embd": 20,
        "n_layer": 2,
        "n_head": 1,
        "n_inner": 48,
        "n_positions": 128,
        "activation_function": "gelu",
        "scale_attn_by_inverse_layer_idx": True,
        "tie_word_embeddings": False,
    },
    "llama": GROUPED | {"num_key_value_heads": 4, "tie_word_embeddings": False},
    "llama3": GROUPED | {"head_dim": 16, "rope_theta": 500000.0, "rope_scaling": LLAMA3},
    "llama_yarn": GROUPED | {"head_dim": 20, "rope_scaling": YARN},
    "llama_biased": GROUPED | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "mistral": GROUPED | {"num_key_value_heads": 1, "sliding_window": 7},
    "qwen2": GROUPED | {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "qwen3": GROUPED | {"head_dim": 12, "tie_word_embeddings": True},
    "gemma": GROUPED | {"num_key_value_heads": 1, "head_dim": 16},
}
DTYPES = {"qwen3": "bfloat16", "qwen2": "float16", "gemma": "bfloat16"}
SHARDS = {"mistral": 3}
FAMILIES = ("gemma", "gpt2", "llama", "mistral")
ROPE_CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    "linear_old_key": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama3": {"rope_theta": 500000.0, "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 8192}},
    "llama3_short": {"rope_scaling": LLAMA3},
    "yarn": {"rope_scaling": YARN | {"original_max_position_embeddings": 4096}},
    "yarn_no_original": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "yarn_betas": {"rope_scaling": YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}},
    "yarn_attention": {"rope_scaling": YARN | {"attention_factor": 0.7}},
    "yarn_mscale": {"rope_scaling": YARN | {"mscale": 0.9, "mscale_all_dim": 0.7}},
}


def describe(case: str, settings: dict[str, Any], dtype: str, shards: int) -> dict[str, Any]:
    """Everything that the folder is made from."""
    family = settings.get("model_type") or next((name for name in FAMILIES if case.startswith(name)), case)
    settings = {"bos_token_id": None, "eos_token_id": None, "model_type": family, **settings}
    config = AutoConfig.for_model(**settings)
    model = AutoModelForCausalLM.from_config(config)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    shapes = {name: shape for name, shape in saved_shapes(model).items() if name not in tied}
    tensors = {name: [shape, spread(family, name, shape, bool(tied))] for name, shape in shapes.items()}
    constants = {name: buffer for name, buffer in model.named_buffers() if name in shapes}
    tensors |= {name: [shapes[name], 0.0, buffer.item()] for name, buffer in constants.items()}
    kept = {**config.to_diff_dict(), "tie_word_embeddings": bool(tied)}
    kept.pop("transformers_version", None)
    return {"config": kept, "tensors": tensors, "dtype": dtype, "shards": shards}


def saved_shapes(model: PreTrainedModel) -> dict[str, list[int]]:
    """Names and shapes as the class saves them: transformers 5 has experts in one tensor in memory only."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with safe_open(Path(folder) / "model.safetensors", "np") as file:
            return {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}


def spread(family: str, name: str, shape: list[int], tied: bool) -> float:
    """Half the width of the uniform distribution: logits of size 1 to 10, and layers that matter."""
    if len(shape) == 1:
        return 0.3
    if len(shape) == 3 and shape[1] == 1:  # a convolution of a few numbers
        return 1.0
    if family.startswith(("gemma", "qwen3_5", "qwen3_next")):  # whose norms are around 2, 1 + weight
        return 0.2
    if tied and ("embed" in name or "wte" in name):
        return 0.8
    return 1.0 if "embed" in name or "wte" in name else 0.5


def load(folder: Path) -> PreTrainedModel:
    """The folder in float32, from the weights as they are stored."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    if hasattr(model, "set_experts_implementation"):  # since 5.0, where the usual one needs even sizes
        model.set_experts_implementation("eager")
    return model.float().eval()  # some classes make parameters in a type of their own


def greedy(
    model: PreTrainedModel, prompts: list[list[int]], steps: int
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """The tokens [prompts, steps], the logits [prompt + steps - 1, V] of each prompt, and the least lead of a
    choice over the next best [prompts].

    All are computed together, in full at every step: a causal model takes no notice of what follows a row.
    """
    rows = torch.zeros(len(prompts), max(map(len, prompts)) + steps, dtype=torch.long)
    for row, prompt in zip(rows, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    all_rows, ends = torch.arange(len(prompts)), torch.tensor([len(prompt) for prompt in prompts])
    for step in range(steps):
        logits = model(rows, use_cache=False).logits
        rows[all_rows, ends + step] = logits[all_rows, ends + step - 1].argmax(-1)
    parts = [logits[i, : end + steps - 1] for i, end in enumerate(ends)]
    top = torch.stack([part[-steps:].topk(2).values for part in parts])
    tokens = torch.stack([row[end : end + steps] for row, end in zip(rows, ends, strict=True)])
    chosen = torch.stack([part[-steps:].argmax(-1) for part in parts])
    assert torch.equal(chosen, tokens)
    return tokens.numpy(), [part.numpy() for part in parts], (top[..., 0] - top[..., 1]).amin(-1).numpy()


Dress = Callable[[int, list[int]], list[int]]
"""What a model is asked of a prompt with its number that was drawn."""


def plain(number: int, prompt: list[int]) -> list[int]:
    """The prompt as it is."""
    return prompt


def references(model: PreTrainedModel, seed: int, dress: Dress = plain) -> dict[str, np.ndarray]:
    """Prompts of many lengths whose greedy continuations are no matter of rounding."""
    generator = np.random.default_rng(seed)
    lengths = [LONGEST - 2 * i for i in range(PROMPTS - 2)] + [1, 2]
    found: dict[int, tuple[Any, ...]] = {}
    while missing := [i for i in range(PROMPTS) if i not in found]:
        drawn = [generator.integers(0, model.config.vocab_size, lengths[i]).tolist() for i in missing]
        prompts = [*map(dress, missing, drawn)]
        results = zip(missing, prompts, *greedy(model, prompts, STEPS), strict=True)
        found |= {i: tuple(rest) for i, *rest, gap in results if gap >= LEAST_GAP}
    return {
        "prompts": np.concatenate([found[i][0] for i in range(PROMPTS)]).astype(np.int16),
        "lengths": np.array([len(found[i][0]) for i in range(PROMPTS)], np.int16),
        "tokens": np.stack([found[i][1] for i in range(PROMPTS)]).astype(np.int16),
        "logits": found[0][2],
    }


def write_rope() -> None:
    """Inverse frequencies and the attention factor of every scaling."""
    found = {}
    for name, settings in ROPE_CASES.items():
        config = AutoConfig.for_model(
            "llama", hidden_size=512, num_attention_heads=8, max_position_embeddings=16384, **settings
        )
        scaling = settings.get("rope_scaling") or {}
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        found[name] = {"settings": settings, "frequencies": frequencies.tolist(), "factor": factor}
    ROPE_FIXTURE.write_text(json.dumps(found))


@dataclass(frozen=True)
class Case:
    """A folder's description, what loads the folder into a model of transformers, and makes its prompts."""

    description: dict[str, Any]
    load: Callable[[Path], PreTrainedModel] = load
    dress: Dress = plain


def cases_of(
    settings: dict[str, dict[str, Any]], dtypes: dict[str, str], shards: dict[str, int]
) -> dict[str, Case]:
    """Cases of transformers' own models; dtypes and shards of some of them.

    Those that are not to be recorded are left undescribed: this release of transformers may lack their class.
    """

    def described(case: str, given: dict[str, Any]) -> dict[str, Any]:
        if sys.argv[1:] and case not in sys.argv[1:]:
            return {}
        return describe(case, given, dtypes.get(case, "float32"), shards.get(case, 1))

    return {case: Case(described(case, given)) for case, given in settings.items()}


@torch.no_grad()
def write_references(fixture: Path, cases: dict[str, Case]) -> None:
    """Descriptions of the cases' folders, prompts, tokens and logits.

    With names of cases on the command line those alone are recorded, and the others stay as they are.
    A case's prompts are drawn by its number: a new one goes last.
    """
    chosen = sys.argv[1:]
    arrays = dict(np.load(fixture)) if chosen else {}
    recorded = json.loads(str(arrays.pop("meta", "{}")))
    meta = {}
    for number, (name, case) in enumerate(cases.items()):
        if chosen and name not in chosen:
            meta |= {name: recorded[name]} if name in recorded else {}
            continue
        description = dict(case.description)
        with tempfile.TemporaryDirectory() as folder:
            description["digest"] = write_folder(Path(folder), description)
            found = references(case.load(Path(folder)), number, case.dress)
        variety = np.mean([len(set(row)) for row in found["tokens"].tolist()])
        size = float(found["logits"].std())
        print(f"{name}: {variety:.1f} different tokens in {STEPS}, logits' spread {size:.2f}")
        arrays |= {f"{name}.{kind}": array for kind, array in found.items()}
        meta[name] = description
    np.savez_compressed(fixture, meta=json.dumps(meta), **arrays)


if __name__ == "__main__":
    write_references(FIXTURE, cases_of(CASES, DTYPES, SHARDS))
    write_rope()
