"""Writes tests/unit/checkpoint/gguf/written/: small files that llama.cpp's own converter has made of folders.

`PYTHONPATH=DIR:DIR/gguf-py PYTHON tests/makers make_gguf_fixtures DIR`, with a Python that has torch and
transformers 4.57.1, and llama.cpp's sources in DIR (taken were those of llama-cpp-python 0.3.36). models.json
has the configuration of each folder, digests of its tensors, and ids of some texts; blocks.json
digests of what the package gguf makes of random blocks.
"""

from __future__ import annotations

import hashlib
import json
import runpy
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from conversion import base, phi
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HOME = Path(__file__).parents[1] / "unit/checkpoint/gguf/written"
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONG = {
    "type": "longrope",
    "short_factor": [1 + 0.1 * pair for pair in range(4)],
    "long_factor": [2 + 0.1 * pair for pair in range(4)],
}
PHI3 = SIZES | {"sliding_window": None, "original_max_position_embeddings": 512}
EXPERTS = {"num_experts_per_tok": 2}
GEMMA = SIZES | {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 64}
GPT_OSS = (
    SIZES
    | EXPERTS
    | {
        "head_dim": 16,
        "num_local_experts": 3,
        "intermediate_size": 32,
        "sliding_window": 64,
        "max_position_embeddings": 131072,
    }
)
LATENT = (
    SIZES
    | EXPERTS
    | {
        "num_key_value_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.5,
        "n_group": 1,
        "topk_group": 1,
    }
)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
V3 = {"norm_topk_prob": True, "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("LlamaConfig", SIZES | {"tie_word_embeddings": True}, "f32"),
    "llama3": (
        "LlamaConfig",
        SIZES | {"rope_theta": 500000.0, "head_dim": 16, "rope_scaling": LLAMA3},
        "f16",
    ),
    "mixtral": (
        "MixtralConfig",
        SIZES | EXPERTS | {"num_local_experts": 3, "intermediate_size": 32, "sliding_window": None},
        "f16",
    ),
    "qwen2": ("Qwen2Config", SIZES, "bf16"),
    "qwen3": ("Qwen3Config", SIZES | {"head_dim": 16}, "q8_0"),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        SIZES
        | EXPERTS
        | {"num_experts": 3, "moe_intermediate_size": 32, "head_dim": 16, "norm_topk_prob": True},
        "bf16",
    ),
    "gemma2": ("Gemma2Config", GEMMA, "bf16"),
    "gemma3": ("Gemma3TextConfig", GEMMA | {"num_hidden_layers": 7, "rope_theta": 1e6}, "f16"),
    "phi3": ("Phi3Config", PHI3, "bf16"),
    "phi3_long": ("Phi3Config", PHI3 | {"max_position_embeddings": 1024, "rope_scaling": LONG}, "f16"),
    "glm4": (
        "Glm4Config",
        SIZES | {"head_dim": 8, "partial_rotary_factor": 0.5, "attention_bias": True},
        "bf16",
    ),
    "gpt_oss": ("GptOssConfig", GPT_OSS, "f32"),
    "deepseek_v2": ("DeepseekV2Config", LATENT | {"q_lora_rank": None}, "f16"),
    "deepseek_v3": ("DeepseekV3Config", LATENT | V3, "bf16"),
}
SPECIAL = ["<|endoftext|>", "<|user|>", "<|observation|>", "[GMASK]", "<sop>"]
TEXTS = [
    "It's 12345 o'clock,  and\n\n  all's well!",
    "Größe: 3,5 m² 中文 🙂",
    "def f(x):\n\treturn x**2  # 99%",
]


def tokenizer() -> Any:
    """Byte pairs with Qwen2's expression."""
    expression = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(expression), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    backend.train_from_iterator([(Path(__file__).parents[2] / "LICENSE").read_text()], trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=SPECIAL[0])


def convert(llama_cpp: Path, folder: Path, target: Path, form: str) -> None:
    """Runs llama.cpp's converter, whose list of known tokenizers lacks those made here."""
    for module in (base, phi):
        for known in vars(module).values():
            if isinstance(known, type) and hasattr(known, "get_vocab_base_pre"):
                known.get_vocab_base_pre = lambda self, of: "qwen2"
                known._set_vocab_sentencepiece = lambda self, *rest, **named: self._set_vocab_gpt2()
                if "Phi3" in known.__name__:
                    known.set_vocab = lambda self: self._set_vocab_gpt2()
    sys.argv[1:] = [str(folder), "--outfile", str(target), "--outtype", form]
    runpy.run_path(str(llama_cpp / "convert_hf_to_gguf.py"), run_name="__main__")


def random_model(kind: str, settings: dict[str, Any]) -> Any:
    """Weights whose norms and biases are not all alike."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(torch.rand_like(parameter) * 0.4 + ("Gemma" not in kind) - 0.2)
            elif name.endswith("bias"):
                parameter.normal_(std=0.1)
    return model


def stored(name: str, values: Any, kind: str, form: str) -> Any:
    """What is left of a tensor in a file: matrices are rounded; 1 is added to Gemma's norms."""
    if name.endswith("gate.weight"):  # a router
        return values
    if values.ndim < 2:
        is_norm = "Gemma" in kind and "norm" in name
        return (values + np.float32(1)) - np.float32(1) if is_norm else values
    types = {"f16": gguf.GGMLQuantizationType.F16, "bf16": gguf.GGMLQuantizationType.BF16}
    types["q8_0"] = gguf.GGMLQuantizationType.Q8_0
    if form not in types:
        return values
    return gguf.quants.dequantize(gguf.quants.quantize(values, types[form]), types[form])


def digest(values: Any) -> str:
    """Zeros have no sign."""
    return hashlib.sha256((np.ascontiguousarray(values) + np.float32(0)).tobytes()).hexdigest()[:16]


def main() -> None:
    llama_cpp = Path(sys.argv[1]).resolve()
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    cases: dict[str, Any] = {}
    for name, (kind, settings, form) in CASES.items():
        model, fast = random_model(kind, settings), tokenizer()
        with TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            fast.save_pretrained(folder)
            config = json.loads((Path(folder) / "config.json").read_text())
            convert(llama_cpp, Path(folder), HOME / f"{name}.gguf", form)
        tied = config.get("tie_word_embeddings", True)
        tensors = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
        cases[name] = {
            "config": config,
            "digests": {
                key: digest(stored(key, values, kind, form))
                for key, values in tensors.items()
                if not (tied and key == "lm_head.weight")
            },
            "ids": [[text, fast(text)["input_ids"]] for text in TEXTS],
        }
    (HOME / "models.json").write_text(json.dumps(cases, indent=1) + "\n")
    blocks = {}
    for kind in map(gguf.GGMLQuantizationType, (2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 39)):
        _, nbytes = gguf.GGML_QUANT_SIZES[kind]
        data = np.random.default_rng(int(kind)).integers(0, 256, (64, nbytes)).astype(np.uint8)
        floats = gguf.quants.dequantize(data, kind)
        blocks[kind.name] = digest(np.where(np.isfinite(floats), floats, 0).astype(np.float32))
    (HOME / "blocks.json").write_text(json.dumps(blocks, indent=1) + "\n")


if __name__ == "__main__":
    main()
