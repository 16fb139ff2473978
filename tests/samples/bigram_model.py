"""A Llama over bytes of which each token follows from the one before, as a text has them."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

_VOCABULARY, _HIDDEN = 257, 64
_END = 256
_CONFIG = {
    "model_type": "llama",
    "vocab_size": _VOCABULARY,
    "hidden_size": _HIDDEN,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "eos_token_id": _END,
}


def write_bigram_model(folder: Path, text: str, chat_template: str) -> Path:
    """A model that writes each character of the text behind the one before; none may come there twice."""
    assert len({*text}) == len(text)
    folder.mkdir(parents=True)
    vocabulary = _write_tokenizer(folder, chat_template)
    rng = np.random.default_rng(0)
    embeddings = rng.standard_normal((_VOCABULARY, _HIDDEN)).astype(np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    head = rng.standard_normal((_VOCABULARY, _HIDDEN)).astype(np.float32) * 0.01
    named = {character: vocabulary[name] for character, name in zip(text, _names(text), strict=True)}
    for before, after in zip(text, text[1:], strict=False):
        head[named[after]] += embeddings[named[before]] * 10
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
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    return folder


def _names(text: str) -> list[str]:
    """The names of bytes in a byte-level vocabulary."""
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    return [*"".join(piece for piece, _ in pieces)]


def _write_tokenizer(folder: Path, chat_template: str) -> dict[str, int]:
    vocabulary = {name: place for place, name in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_end|>"])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": chat_template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": "<|im_end|>"}))
    return vocabulary
