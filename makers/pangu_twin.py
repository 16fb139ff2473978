"""PanGu-alpha in NumPy, written from its published behaviour: what fixtures are made with."""

from __future__ import annotations

from collections.abc import Mapping
from math import erf
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class PanguTwin:
    """All positions of one sequence at once, in float64, without a cache."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, NDArray[np.float32]]) -> None:
        self.config = config
        self._tensors = {name: array.astype(np.float64) for name, array in tensors.items()}

    def logits(self, ids: list[int]) -> Array:
        """[tokens, vocabulary]."""
        table, count = self._tensors["transformer.wte.weight"], len(ids)
        x = table[ids] + self._tensors["transformer.wpe.weight"][:count]
        last = self.config["num_layers"] - 1
        for layer in range(last):
            x = self._block(f"transformer.h.{layer}", x, None)
        x = self._norm("transformer.ln_f", x)
        x = self._block(f"transformer.h.{last}", x, self._tensors["transformer.wqe.weight"][:count])
        return x @ self._tensors.get("lm_head.weight", table).T

    def _block(self, name: str, x: Array, queries: Array | None) -> Array:
        """queries: what they are made of, where that is not the normed x."""
        normed = self._norm(f"{name}.ln_1", x)
        x = x + self._attention(f"{name}.attn", normed, normed if queries is None else queries)
        return x + self._mlp(f"{name}.mlp", self._norm(f"{name}.ln_2", x))

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self._tensors[f"{name}.weight"].T + self._tensors[f"{name}.bias"]

    def _norm(self, name: str, x: Array) -> Array:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.config["layer_norm_epsilon"])
        return x * self._tensors[f"{name}.weight"] + self._tensors[f"{name}.bias"]

    def _mlp(self, name: str, x: Array) -> Array:
        x = self._linear(f"{name}.c_fc", x)
        if self.config["activation_function"] == "quick_gelu":  # MindFormers' fast_gelu
            x = x / (1 + np.exp(-1.702 * x))
        else:
            x = 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))
        return self._linear(f"{name}.c_proj", x)

    def _attention(self, name: str, x: Array, queries: Array) -> Array:
        heads, tokens = self.config["num_heads"], len(x)
        query, key, value = (
            self._linear(f"{name}.{which}_proj", each).reshape(tokens, heads, -1).transpose(1, 0, 2)
            for which, each in (("q", queries), ("k", x), ("v", x))
        )
        scores = query @ key.transpose(0, 2, 1)
        if self.config["scale_attn_weights"]:
            scores = scores / np.sqrt(query.shape[-1])
        scores[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return self._linear(f"{name}.c_proj", (weights @ value).transpose(1, 0, 2).reshape(tokens, -1))
