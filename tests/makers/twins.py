"""ChatGLM2 and ChatGLM3, ChatGLM-6B and PanGu-alpha in NumPy, written from their published behaviour.

transformers has no classes of them: fixtures are made with these. All positions of one sequence are computed
at once, in float64, without a cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import erf
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Twin:
    """A network of a configuration and its weights."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, NDArray[np.float32]]) -> None:
        self.config = config
        self._tensors = {name: array.astype(np.float64) for name, array in tensors.items()}

    def logits(self, ids: list[int]) -> Array:
        """[tokens, vocabulary]."""
        raise NotImplementedError

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self._tensors[f"{name}.weight"].T + self._tensors.get(f"{name}.bias", 0.0)

    def _layer_norm(self, name: str, x: Array, epsilon: float) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        normed = centred / np.sqrt(np.mean(centred**2, -1, keepdims=True) + epsilon)
        return normed * self._tensors[f"{name}.weight"] + self._tensors[f"{name}.bias"]


def _attended(query: Array, key: Array, value: Array, factor: float, seen: Array | None = None) -> Array:
    """Of heads [tokens, heads, size]: [tokens, heads * size]. seen: of each token [tokens, tokens]."""
    tokens = len(query)
    is_seen = np.tril(np.ones((tokens, tokens), bool)) if seen is None else seen
    scores = query.transpose(1, 0, 2) @ key.transpose(1, 2, 0) * factor
    scores = np.where(is_seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return (weights @ value.transpose(1, 0, 2)).transpose(1, 0, 2).reshape(tokens, -1)


class ChatglmTwin(Twin):
    """ChatGLM2 and ChatGLM3."""

    def logits(self, ids: list[int]) -> Array:
        x = self._tensors["transformer.embedding.word_embeddings.weight"][ids]
        for layer in range(self.config["num_layers"]):
            name = f"transformer.encoder.layers.{layer}"
            x = x + self._attention(f"{name}.self_attention", self._norm(f"{name}.input_layernorm", x))
            x = x + self._mlp(f"{name}.mlp", self._norm(f"{name}.post_attention_layernorm", x))
        x = self._norm("transformer.encoder.final_layernorm", x)
        return self._linear("transformer.output_layer", x)

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
        return self._linear(f"{name}.dense", _attended(query, key, value, size**-0.5))

    def _rotated(self, heads: Array) -> Array:
        """The first half of each head as complex numbers of neighbours, turned by their position."""
        width, ratio = self.config["kv_channels"] // 2, self.config.get("rope_ratio", 1)
        base, slower = (1e4, ratio) if ratio == 16 else (1e4 * ratio, 1)
        angles = np.arange(len(heads))[:, None] / slower * base ** -(np.arange(0, width, 2) / width)
        turned = (heads[..., 0:width:2] + 1j * heads[..., 1:width:2]) * np.exp(1j * angles)[:, None]
        pairs = np.stack((turned.real, turned.imag), -1).reshape(*heads.shape[:2], width)
        return np.concatenate((pairs, heads[..., width:]), -1)


class Chatglm6bTwin(Twin):
    """ChatGLM-6B, whose prompts have a context of which every token sees all of it."""

    def logits(self, ids: list[int]) -> Array:
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

    def _norm(self, name: str, x: Array) -> Array:
        return self._layer_norm(name, x, self.config["layernorm_epsilon"])

    def _mlp(self, name: str, x: Array) -> Array:
        inner = self._linear(f"{name}.dense_h_to_4h", x)
        inner = inner / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (inner + 0.044715 * inner**3)))
        return self._linear(f"{name}.dense_4h_to_h", inner)

    def _attention(self, name: str, x: Array, positions: tuple[Array, Array], is_seen: Array) -> Array:
        joined = self._linear(f"{name}.query_key_value", x)
        joined = joined.reshape(len(x), self.config["num_attention_heads"], -1)
        query, key, value = np.split(joined, 3, -1)
        query, key = (
            np.concatenate([*map(_turned, np.split(each, 2, -1), positions)], -1) for each in (query, key)
        )
        found = _attended(query, key, value, query.shape[-1] ** -0.5, is_seen)
        return self._linear(f"{name}.dense", found)


def _turned(half: Array, positions: Array) -> Array:
    """Half of each head: its numbers and those half of its width away are complex numbers, turned."""
    width = half.shape[-1]
    frequencies = (1e4 ** -(np.arange(0, width, 2, np.float32) / width)).astype(np.float16)
    angles = positions[:, None] * frequencies.astype(np.float64)
    first, second = np.split(half, 2, -1)
    turned = (first + 1j * second) * np.exp(1j * angles)[:, None]
    return np.concatenate((turned.real, turned.imag), -1)


class PanguTwin(Twin):
    """PanGu-alpha, whose last layer has queries of its own."""

    def logits(self, ids: list[int]) -> Array:
        table, count = self._tensors["transformer.wte.weight"], len(ids)
        x = table[ids] + self._tensors["transformer.wpe.weight"][:count]
        last = self.config["num_layers"] - 1
        for layer in range(last):
            x = self._block(f"transformer.h.{layer}", x, None)
        x = self._norm("transformer.ln_f", x)
        x = self._block(f"transformer.h.{last}", x, self._tensors["transformer.wqe.weight"][:count])
        return x @ self._tensors.get("lm_head.weight", table).T

    def _norm(self, name: str, x: Array) -> Array:
        return self._layer_norm(name, x, self.config["layer_norm_epsilon"])

    def _block(self, name: str, x: Array, queries: Array | None) -> Array:
        """queries: what they are made of, where that is not the normed x."""
        normed = self._norm(f"{name}.ln_1", x)
        x = x + self._attention(f"{name}.attn", normed, normed if queries is None else queries)
        return x + self._mlp(f"{name}.mlp", self._norm(f"{name}.ln_2", x))

    def _mlp(self, name: str, x: Array) -> Array:
        x = self._linear(f"{name}.c_fc", x)
        if self.config["activation_function"] == "quick_gelu":  # MindFormers' fast_gelu
            x = x / (1 + np.exp(-1.702 * x))
        else:
            x = 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))
        return self._linear(f"{name}.c_proj", x)

    def _attention(self, name: str, x: Array, queries: Array) -> Array:
        query, key, value = (
            self._linear(f"{name}.{which}_proj", each).reshape(len(x), self.config["num_heads"], -1)
            for which, each in (("q", queries), ("k", x), ("v", x))
        )
        factor = query.shape[-1] ** -0.5 if self.config["scale_attn_weights"] else 1.0
        return self._linear(f"{name}.c_proj", _attended(query, key, value, factor))
