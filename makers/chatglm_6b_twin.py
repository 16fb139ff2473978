"""ChatGLM-6B in NumPy, written from its published behaviour: what fixtures are made with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Chatglm6bTwin:
    """All positions of one sequence at once, in float64, without a cache."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, NDArray[np.float32]]) -> None:
        self.config = config
        self._tensors = {name: array.astype(np.float64) for name, array in tensors.items()}

    def logits(self, ids: list[int]) -> Array:
        """[tokens, vocabulary]."""
        context = ids.index(self.config["bos_token_id"])
        masks = (self.config[f"{name}_token_id"] for name in ("gmask", "mask"))
        mask = next(ids.index(each) for each in masks if each in ids)
        places = np.arange(len(ids))
        positions = np.where(places < context, places, mask)
        blocks = np.maximum(places - context + 1, 0)
        is_seen = np.tril(np.ones((len(ids), len(ids)), bool))
        is_seen[:, :context] = True
        x = self._tensors["transformer.word_embeddings.weight"][ids]
        alpha = (2 * self.config["num_layers"]) ** 0.5
        for layer in range(self.config["num_layers"]):
            name = f"transformer.layers.{layer}"
            x = self._norm(f"{name}.input_layernorm", x)
            x = alpha * x + self._attention(f"{name}.attention", x, (positions, blocks), is_seen)
            x = self._norm(f"{name}.post_attention_layernorm", x)
            x = alpha * x + self._mlp(f"{name}.mlp", x)
        tied = self.config.get("tie_word_embeddings", True)
        head = self._tensors["transformer.word_embeddings.weight" if tied else "lm_head.weight"]
        return self._norm("transformer.final_layernorm", x) @ head.T

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self._tensors[f"{name}.weight"].T + self._tensors[f"{name}.bias"]

    def _norm(self, name: str, x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        variance = np.mean(centred**2, -1, keepdims=True) + self.config["layernorm_epsilon"]
        return centred / np.sqrt(variance) * self._tensors[f"{name}.weight"] + self._tensors[f"{name}.bias"]

    def _mlp(self, name: str, x: Array) -> Array:
        inner = self._linear(f"{name}.dense_h_to_4h", x)
        inner = inner / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (inner + 0.044715 * inner**3)))
        return self._linear(f"{name}.dense_4h_to_h", inner)

    def _attention(self, name: str, x: Array, positions: tuple[Array, Array], is_seen: Array) -> Array:
        heads, tokens = self.config["num_attention_heads"], len(x)
        joined = self._linear(f"{name}.query_key_value", x).reshape(tokens, heads, -1)
        query, key, value = np.split(joined, 3, -1)
        query, key = (
            np.concatenate([*map(_turned, np.split(each, 2, -1), positions)], -1) for each in (query, key)
        )
        scores = query.transpose(1, 0, 2) @ key.transpose(1, 2, 0) / np.sqrt(query.shape[-1])
        scores = np.where(is_seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        seen = (weights @ value.transpose(1, 0, 2)).transpose(1, 0, 2)
        return self._linear(f"{name}.dense", seen.reshape(tokens, -1))


def _turned(half: Array, positions: Array) -> Array:
    """Half of each head: its numbers and those half of its width away are complex numbers, turned."""
    width = half.shape[-1]
    frequencies = (1e4 ** -(np.arange(0, width, 2, np.float32) / width)).astype(np.float16)
    angles = positions[:, None] * frequencies.astype(np.float64)
    first, second = np.split(half, 2, -1)
    turned = (first + 1j * second) * np.exp(1j * angles)[:, None]
    return np.concatenate((turned.real, turned.imag), -1)
