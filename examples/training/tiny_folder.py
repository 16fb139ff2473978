"""The tiny model's folder on disk: its tokenizer, and every file of the Hugging Face GPT-2 layout."""

import json
import os
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from mindbatch.checkpoint.folders.digests import record_digests
from tiny_network import INITIAL_STD, LAYER_NORM_EPSILON, Shape

END_OF_TEXT = "<|endoftext|>"
_VOCABULARY = 440

Weights = dict[str, npt.NDArray[np.float32]]  # by Hugging Face's names of the tensors


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Byte-level BPE, built as GPT-2's: any text can be encoded, and number words become one token each."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_folder(
    folder: Path, weights: Weights, tokenizer: Tokenizer, shape: Shape, record: dict[str, object]
) -> None:
    """Writes the folder, each file beside its place first, so that an interrupted write leaves no torn file.

    `record` is how the training went; it is kept in training.json.
    """
    end = tokenizer.token_to_id(END_OF_TEXT)
    files = {
        "config.json": _json(_model_config(shape, end)),
        "generation_config.json": _json({"bos_token_id": end, "eos_token_id": end}),
        "model.safetensors": save(weights, metadata={"format": "pt"}),  # transformers demands the metadata
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": _json(_tokenizer_config(shape.positions)),
        "training.json": _json(record),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        partial = folder / f"{name}.partial"
        partial.write_bytes(content)
        os.replace(partial, folder / name)
    record_digests(folder, replace=True)


def _model_config(shape: Shape, end: int) -> dict[str, object]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": shape.vocab_size,
        "n_positions": shape.positions,
        "n_embd": shape.width,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": LAYER_NORM_EPSILON,
        "initializer_range": INITIAL_STD,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "bos_token_id": end,
        "eos_token_id": end,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


def _tokenizer_config(positions: int) -> dict[str, object]:
    return {
        "tokenizer_class": "GPT2TokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "unk_token": END_OF_TEXT,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": positions,
    }


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that the weights depend on."""
    packages = ("mindspore", "numpy", "safetensors", "tokenizers")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
