"""Replaces norms, attention and rotary embeddings by our kernels or MindSpore's plain operators."""

from typing import Any

from mindspore import Parameter, Tensor, nn, ops

from mindbatch.kernels.mindspore_kernels import MindSporeKernels
from mindbatch.kernels.shapes import AttentionShape

INTERLEAVED = 3  # RotaryPosEmbMode with pairs of neighbours; the other mode pairs the halves of a head


class KernelRmsNorm(nn.Cell):
    """Replaces RmsNorm: (x [..., width], weight [width]) -> (x / rms(x) * weight,)."""

    def __init__(self, epsilon: float, kernels: MindSporeKernels) -> None:
        super().__init__(auto_prefix=False)
        self.norm = kernels.cell("norm", epsilon=epsilon, centred=False)
        self.no_bias = kernels.absent()

    def construct(self, x: Tensor, weight: Tensor) -> tuple[Tensor]:
        rows = x.reshape((-1, x.shape[-1]))
        return (self.norm(rows, weight, self.no_bias).reshape(x.shape),)


class ApplyRotary(nn.Cell):
    """Replaces ApplyRotaryPosEmb on a CPU.

    Rotates queries and keys [T, heads * size] by cos and sin [T, size] (Su et al., 2021).
    """

    def __init__(self, size: int, is_interleaved: bool) -> None:
        super().__init__(auto_prefix=False)
        self.size = size
        self.is_interleaved = is_interleaved

    def _rotated_pairs(self, x: Tensor) -> Tensor:
        """Maps each pair (a, b) to (-b, a)."""
        half = self.size // 2
        if self.is_interleaved:
            pairs = x.reshape((x.shape[0], -1, half, 2))
            return ops.stack((-pairs[..., 1], pairs[..., 0]), -1).reshape(x.shape)
        return ops.cat((-x[..., half:], x[..., :half]), -1)

    def _rotate(self, flat: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = flat.reshape((flat.shape[0], -1, self.size))
        rotated = x * cos.expand_dims(1) + self._rotated_pairs(x) * sin.expand_dims(1)
        return rotated.reshape(flat.shape)

    def construct(
        self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self._rotate(query, cos, sin), self._rotate(key, cos, sin)


class PartialRotary(nn.Cell):
    """Replaces a RotaryEmbedding of the first `dim` numbers of each head; avoids StridedSlice."""

    def __init__(self, module: Any) -> None:
        super().__init__(auto_prefix=False)
        self.rotate = module.rotary_embedding_op
        self.head_dim, self.dim = module.kv_channels, module.dim

    def _parts(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Splits [T, heads * head_dim] into the rotated [T, heads * dim] and the rest [T, heads, ...]."""
        by_head = flat.reshape((flat.shape[0], -1, self.head_dim))
        rotated, rest = ops.function.array_func.split_ext(by_head, (self.dim, self.head_dim - self.dim), -1)
        return rotated.reshape((flat.shape[0], -1)), rest

    def _joined(self, rotated: Tensor, rest: Tensor) -> Tensor:
        by_head = rotated.reshape((rest.shape[0], -1, self.dim))
        return ops.cat((by_head, rest), -1).reshape((rest.shape[0], -1))

    def construct(
        self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        query, query_rest = self._parts(query)
        key, key_rest = self._parts(key)
        query, key = self.rotate(query, key, cos, sin, lengths)
        return self._joined(query, query_rest), self._joined(key, key_rest)


class KernelAttention(nn.Cell):
    """Replaces ReshapeAndCache and PagedAttention of one layer, with a cache of its own.

    The inputs are those of FlashAttention. Two have the meaning of `kernels.step.Batch`:
    batch_valid_length is the context length of each token, q_seq_lens its row of block_tables.

    rank: the size of latent attention's values, which are the first numbers of the cached vectors; 0 for
        other attention.
    """

    def __init__(
        self,
        shape: AttentionShape,
        cache: tuple[Parameter, Parameter],
        kernels: MindSporeKernels,
        rank: int = 0,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.attend = kernels.cell("attention", shape=shape)
        self.key_cache, self.value_cache = cache
        self.heads, self.rank = shape.heads, rank

    def construct(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        slot_mapping: Tensor,
        block_tables: Tensor,
        batch_valid_length: Tensor,
        context_lens_tensor: Tensor,
        q_seq_lens: Tensor,
        actual_seq_qlen: Tensor | None = None,
        actual_seq_kvlen: Tensor | None = None,
        attn_mask: Tensor | None = None,
        key_cache: Tensor | None = None,
        value_cache: Tensor | None = None,
    ) -> Tensor:
        seen = self.attend(
            ops.cat((query, key, value), -1),
            *(self.key_cache, self.value_cache),
            *(slot_mapping, q_seq_lens, block_tables, batch_valid_length),
        )
        if self.rank == 0:
            return seen
        by_head = seen.reshape((query.shape[0], self.heads, -1))
        return by_head[:, :, : self.rank].reshape((query.shape[0], -1))


class LatentTensors(nn.Cell):
    """Computes MLASelfAttention's queries and the vectors to cache, as key and as value.

    Replaces get_query_key_value_tensors, which would write the cache itself.
    """

    def __init__(self, module: Any) -> None:
        super().__init__(auto_prefix=False)
        self.compute = module
        self.absorb = ops.BatchMatMul()

    def construct(
        self,
        hidden_states: Tensor,
        batch_valid_length: Tensor,
        rotary_pos_cos: Tensor,
        rotary_pos_sin: Tensor,
        slot_mapping: Tensor,
        key_cache: Tensor | None,
    ) -> Any:
        compressed, rotated_key, query, rotated_query = self.compute.compute_kv(
            hidden_states, batch_valid_length, rotary_pos_cos, rotary_pos_sin
        )
        query = self.absorb(query.swapaxes(0, 1), self.compute.q_absorb).swapaxes(0, 1)
        queries = ops.cat((query, rotated_query), -1).reshape((query.shape[0], -1))
        cached = ops.cat((compressed, rotated_key), -1)
        return queries, None, cached, None, cached, self.compute.out_absorb
