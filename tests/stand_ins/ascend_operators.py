"""What the documentation says of Ascend's fused operators, in operators that a CPU has too.

Sources: the docstrings of MindSpore 2.9's operators; of q_seq_lens and masks also CANN's reference of
PagedAttention (Ascend Transformer Boost) and MindFormers' use of both.
"""

from typing import Any

from mindspore import Tensor, nn, ops

from mindbatch.backends.mindformers.stand_ins.experts import GroupedMatmul, TokenCombine, TokenDispatch
from mindbatch.kernels.ascend.plain_attention import NEVER

Optional = Tensor | None


class ReshapeAndCache(nn.Cell):
    """Writes keys and values [T, kv_heads * head_dim] to the slots of caches [blocks, size, heads, dim]."""

    def __init__(self) -> None:
        super().__init__()
        self.write = ops.ScatterNdUpdate()

    def construct(
        self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
    ) -> Tensor:
        _, size, heads, dim = key_cache.shape
        where = ops.stack((slots // size, slots % size), 1)
        self.write(key_cache, where, key.reshape(-1, heads, dim))
        self.write(value_cache, where, value.reshape(-1, heads, dim))
        return key


def sequence_of_tokens(tokens: int, q_seq_lens: Tensor) -> Tensor:
    """[T]: the sequence of each token, whose numbers are given."""
    ends = ops.cumsum(q_seq_lens, 0).expand_dims(0)
    return ops.sum(ops.cast(ops.arange(tokens).expand_dims(1) >= ends, q_seq_lens.dtype), 1)


class _Softmax(nn.Cell):
    """softmax(scale * q k + bias) v of heads [T, heads, dim], keys and values [T, C, kv_heads, dim]."""

    def __init__(self, heads: int, scale: float) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale

    def construct(self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        group = self.heads // keys.shape[2]
        keys, values = ops.repeat_elements(keys, group, 2), ops.repeat_elements(values, group, 2)
        heads = query.reshape(query.shape[0], 1, self.heads, -1)
        scores = ops.sum(heads * keys, -1) * self.scale + bias.expand_dims(2)
        weights = ops.softmax(scores, 1).expand_dims(3)
        return ops.sum(weights * values, 1).reshape(query.shape)


class PagedAttention(nn.Cell):
    """Queries [T, heads * dim] of sequences over their blocks, as far as context_lens goes.

    Queries of a sequence lie one after another, q_seq_lens of them. A mask [T, columns] is added to the
    scores where any sequence has several, and has no effect elsewhere.
    """

    def __init__(self, head_num: int, scale_value: float, kv_head_num: int) -> None:
        super().__init__()
        self.attend = _Softmax(head_num, scale_value)
        self.kv_heads = kv_head_num

    def construct(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_tables: Tensor,
        context_lens: Tensor,
        antiquant_scale: Optional,
        antiquant_offset: Optional,
        attn_mask: Optional,
        q_seq_lens: Tensor,
    ) -> Tensor:
        tokens, (_, size, _, dim) = query.shape[0], key_cache.shape
        rows = sequence_of_tokens(tokens, q_seq_lens)
        tables, columns = ops.gather(block_tables, rows, 0), block_tables.shape[1] * size
        keys = ops.gather(key_cache, tables, 0).reshape(tokens, columns, self.kv_heads, dim)
        values = ops.gather(value_cache, tables, 0).reshape(tokens, columns, self.kv_heads, dim)
        bounds = ops.gather(context_lens, rows, 0).expand_dims(1)
        bias = ops.where(ops.arange(columns).expand_dims(0) < bounds, 0.0, NEVER)
        if attn_mask is not None:
            bias = bias + attn_mask * ops.cast(q_seq_lens.max() > 1, attn_mask.dtype)
        return self.attend(query, keys, values, bias)


class FlashAttentionScore(nn.Cell):
    """Layout TH: queries, keys and values of whole sequences, one after another, causal by the mask's tile.

    The tile [128, 128] holds for every stretch of a sequence: 0 up to the diagonal, above it what is added to
    the score of a later position.
    """

    def __init__(self, head_num: int, scale_value: float, next_tokens: int, input_layout: str) -> None:
        super().__init__()
        assert (next_tokens, input_layout) == (0, "TH")
        self.attend = _Softmax(head_num, scale_value)
        self.heads = head_num

    def construct(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        real_shift: Optional,
        drop_mask: Optional,
        padding_mask: Optional,
        attn_mask: Tensor,
        prefix: Optional,
        actual_seq_qlen: Tensor,
        actual_seq_kvlen: Tensor,
    ) -> tuple[Tensor, ...]:
        tokens, dim = query.shape[0], query.shape[1] // self.heads
        shape = (1, tokens, key.shape[1] // dim, dim)
        keys = ops.broadcast_to(key.reshape(shape), (tokens, *shape[1:]))
        values = ops.broadcast_to(value.reshape(shape), (tokens, *shape[1:]))
        mine = sequence_of_tokens(tokens, actual_seq_qlen).expand_dims(1)
        theirs = sequence_of_tokens(tokens, actual_seq_kvlen).expand_dims(0)
        order = ops.arange(tokens)
        later = order.expand_dims(0) > order.expand_dims(1)
        bias = ops.where(later, attn_mask[0, 1], attn_mask[1, 0])
        bias = ops.where(mine == theirs, bias, NEVER)
        return query, query, query, self.attend(query, keys, values, bias)


class RmsNorm(nn.Cell):
    """Returns (norm, reciprocal of the root mean square)."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def construct(self, x: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        inverse = ops.rsqrt(ops.mean(x * x, -1, True) + self.epsilon)
        return x * inverse * gamma, inverse


class AddRmsNorm(nn.Cell):
    """Returns (norm of the sum, reciprocal of its root mean square, the sum)."""

    def construct(
        self, x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        total = x1 + x2
        inverse = ops.rsqrt(ops.mean(total * total, -1, True) + epsilon)
        return total * inverse * gamma, inverse, total


class LayerNormExt(nn.Cell):
    """Returns (norm, mean, reciprocal of the standard deviation)."""

    def construct(
        self, x: Tensor, shape: tuple[int, ...], weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean = ops.mean(x, -1, True)
        inverse = ops.rsqrt(ops.mean((x - mean) * (x - mean), -1, True) + eps)
        return (x - mean) * inverse * weight + bias, mean, inverse


class ApplyRotaryPosEmb(nn.Cell):
    """cos_format 2: x * cos + rotate_half(x) * sin of each head; a row [dim] of angles for each token."""

    def __init__(self, cos_format: int) -> None:
        super().__init__()
        assert cos_format == 2

    def _rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        tokens, dim = cos.shape
        heads = x.reshape(tokens, -1, dim)
        half = ops.cat((-heads[:, :, dim // 2 :], heads[:, :, : dim // 2]), -1)
        return (heads * cos.expand_dims(1) + half * sin.expand_dims(1)).reshape(x.shape)

    def construct(
        self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, seq_len: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self._rotated(query, cos, sin), self._rotated(key, cos, sin)


class Swiglu(nn.Cell):
    """SiLU of the first half of a dimension times the second half."""

    def construct(self, x: Tensor, dim: int) -> Tensor:
        width = x.shape[dim] // 2
        gate = x[:, :width]
        return gate * ops.sigmoid(gate) * x[:, width:]


class GeluExt(nn.Cell):
    """x * Phi(x), or its approximation by tanh."""

    def construct(self, x: Tensor, approximate: str) -> Tensor:
        if approximate == "tanh":
            return x * ops.sigmoid(1.5957691216 * (x + 0.044715 * x * x * x))
        return 0.5 * x * (1.0 + ops.erf(x * 0.70710678))


class MoeInitRoutingV2(nn.Cell):
    """Rows [T * k, width] in order of expert, where each choice of a token stands, rows of each expert."""

    def construct(
        self,
        x: Tensor,
        expert_idx: Tensor,
        active_num: int,
        expert_capacity: int,
        expert_num: int,
        drop_pad_mode: int,
        expert_tokens_count_or_cumsum_flag: int,
        expert_tokens_before_capacity_flag: bool,
    ) -> tuple[Tensor, ...]:
        assert (active_num, expert_capacity, drop_pad_mode) == (0, 0, 0)
        assert expert_tokens_count_or_cumsum_flag == 2
        rows, counts, (places,) = TokenDispatch(expert_num)(x, expert_idx)
        return rows, places, counts, counts


class MoeTokenUnpermute(nn.Cell):
    """The sum of each token's rows, weighted."""

    def __init__(self) -> None:
        super().__init__()
        self.combine = TokenCombine()

    def construct(
        self, tokens: Tensor, sorted_indices: Tensor, probs: Tensor, padded_mode: bool, restore_shape: None
    ) -> Tensor:
        return self.combine(tokens, probs, sorted_indices)


class GroupedMatmulV4(nn.Cell):
    """See the stand-in for MindFormers' models."""

    def __init__(self) -> None:
        super().__init__()
        self.product = GroupedMatmul()

    def construct(
        self, *inputs: Any, split_item: int, group_type: int, group_list_type: int
    ) -> tuple[Tensor]:
        assert (split_item, group_type, group_list_type) == (3, 0, 1)
        return self.product(*inputs, split_item, group_type, group_list_type)


def put_in(monkeypatch: Any) -> None:
    """Puts every stand-in where the Ascend kernels take its operator from."""
    from mindbatch.kernels.ascend import attention

    monkeypatch.setattr(attention, "FlashAttentionScore", FlashAttentionScore)
    monkeypatch.setattr(ops, "RmsNorm", RmsNorm)
    attending, others = (ReshapeAndCache, PagedAttention), (AddRmsNorm, LayerNormExt, ApplyRotaryPosEmb)
    of_experts = (MoeInitRoutingV2, GroupedMatmulV4, MoeTokenUnpermute)
    for cell in (*attending, *others, *of_experts, Swiglu, GeluExt):
        monkeypatch.setattr(ops.auto_generate, cell.__name__, cell)
