"""ChatGLM2 and ChatGLM3 in NumPy, written from their published behaviour: what fixtures are made with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class ChatglmTwin:
    """All positions of one sequence at once, in float64, without a cache."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, NDArray[np.float32]]) -> None:
        self.config = config
        self._tensors = {name: array.astype(np.float64) for name, array in tensors.items()}

    def logits(self, ids: list[int]) -> Array:
        """[tokens, vocabulary]."""
        x = self._tensors["transformer.embedding.word_embeddings.weight"][ids]
        for layer in range(self.config["num_layers"]):
            name = f"transformer.encoder.layers.{layer}"
            x = x + self._attention(f"{name}.self_attention", self._norm(f"{name}.input_layernorm", x))
            x = x + self._mlp(f"{name}.mlp", self._norm(f"{name}.post_attention_layernorm", x))
        x = self._norm("transformer.encoder.final_layernorm", x)
        return self._linear("transformer.output_layer", x)

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self._tensors[f"{name}.weight"].T + self._tensors.get(f"{name}.bias", 0.0)

    def _norm(self, name: str, x: Array) -> Array:
        square = np.mean(x**2, -1, keepdims=True)
        return x / np.sqrt(square + self.config["layernorm_epsilon"]) * self._tensors[f"{name}.weight"]

    def _mlp(self, name: str, x: Array) -> Array:
        gate, up = np.split(self._linear(f"{name}.dense_h_to_4h", x), 2, -1)
        return self._linear(f"{name}.dense_4h_to_h", gate / (1 + np.exp(-gate)) * up)

    def _attention(self, name: str, x: Array) -> Array:
        size, heads = self.config["kv_channels"], self.config["num_attention_heads"]
        groups, tokens = self.config["multi_query_group_num"], len(x)
        widths = np.cumsum([heads, groups]) * size
        query, key, value = (
            part.reshape(tokens, -1, size)
            for part in np.split(self._linear(f"{name}.query_key_value", x), widths, -1)
        )
        query, key = self._rotated(query), self._rotated(key)
        key, value = (np.repeat(each, heads // groups, 1) for each in (key, value))
        scores = query.transpose(1, 0, 2) @ key.transpose(1, 2, 0) / np.sqrt(size)
        scores[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        seen = (weights @ value.transpose(1, 0, 2)).transpose(1, 0, 2)
        return self._linear(f"{name}.dense", seen.reshape(tokens, -1))

    def _rotated(self, heads: Array) -> Array:
        """The first half of each head as complex numbers of neighbours, turned by their position."""
        width, ratio = self.config["kv_channels"] // 2, self.config.get("rope_ratio", 1)
        base, slower = (1e4, ratio) if ratio == 16 else (1e4 * ratio, 1)
        angles = np.arange(len(heads))[:, None] / slower * base ** -(np.arange(0, width, 2) / width)
        turned = (heads[..., 0:width:2] + 1j * heads[..., 1:width:2]) * np.exp(1j * angles)[:, None]
        pairs = np.stack((turned.real, turned.imag), -1).reshape(*heads.shape[:2], width)
        return np.concatenate((pairs, heads[..., width:]), -1)
