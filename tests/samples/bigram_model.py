"""A Llama over bytes of which each token follows from the one before, as a text has them."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

_HIDDEN = 64
_CONFIG = {
    "model_type": "llama",
    "hidden_size": _HIDDEN,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "eos_token_id": 256,
}


def write_bigram_model(
    folder: Path, pieces: Sequence[str], chat_template: str, control: Sequence[str] = ()
) -> Path:
    """A model that writes each piece behind the one before; none may come there twice.

    pieces: characters of one byte, and some of `control`, which are control tokens.
    """
    assert len({*pieces}) == len(pieces)
    folder.mkdir(parents=True)
    vocabulary = _write_tokenizer(folder, chat_template, control)
    size = len(vocabulary)
    rng = np.random.default_rng(0)
    embeddings = rng.standard_normal((size, _HIDDEN)).astype(np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    head = rng.standard_normal((size, _HIDDEN)).astype(np.float32) * 0.01
    ids = [vocabulary[piece if piece in control else _byte_name(piece)] for piece in pieces]
    for before, after in zip(ids, ids[1:], strict=False):
        head[after] += embeddings[before] * 10
    tensors = {"model.embed_tokens.weight": embeddings, "lm_head.weight": head}
    tensors["model.norm.weight"] = np.ones(_HIDDEN, np.float32)
    shapes = {"self_attn.q_proj": (_HIDDEN, _HIDDEN), "self_attn.k_proj": (_HIDDEN, _HIDDEN)}
    shapes |= {"self_attn.v_proj": (_HIDDEN, _HIDDEN), "self_attn.o_proj": (_HIDDEN, _HIDDEN)}
    shapes |= {"mlp.gate_proj": (8, _HIDDEN), "mlp.up_proj": (8, _HIDDEN), "mlp.down_proj": (_HIDDEN, 8)}
    tensors |= {
        f"model.layers.0.{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()
    }
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"model.layers.0.{name}.weight"] = np.ones(_HIDDEN, np.float32)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_CONFIG | {"vocab_size": size}))
    return folder


def _byte_name(character: str) -> str:
    """The name of a byte in a byte-level vocabulary."""
    ((name, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(character)
    return name


def _write_tokenizer(folder: Path, chat_template: str, control: Sequence[str]) -> dict[str, int]:
    vocabulary = {name: place for place, name in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_end|>", *control])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": chat_template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": "<|im_end|>"}))
    return dict(backend.get_vocab(with_added_tokens=True))
