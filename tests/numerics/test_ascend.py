"""The Ascend kernels with stand-ins for the operators that only an NPU has: what is called, and with what."""

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from mindbatch.errors import ConfigError
from mindbatch.kernels import ascend, reference
from mindbatch.kernels.choice import choose_kernels
from mindbatch.kernels.interface import AttentionShape, CacheGeometry
from mindbatch.parallel.context import initialise

SHAPE = AttentionShape(heads=4, kv_heads=2, head_dim=8, scale=0.3)
GEOMETRY = CacheGeometry(num_blocks=6, block_size=16)


class ReshapeAndCache(nn.Cell):
    """Writes keys and values [T, kv_heads * head_dim] to the slots of caches [blocks, size, heads, dim]."""

    def __init__(self):
        super().__init__()
        self.write = ops.ScatterNdUpdate()

    def construct(self, key, value, key_cache, value_cache, slots):
        blocks, size, heads, dim = key_cache.shape
        slots = ops.where(slots < 0, (blocks - 1) * size, slots)
        where = ops.stack((slots // size, slots % size), 1)
        self.write(key_cache, where, key.reshape(-1, heads, dim))
        self.write(value_cache, where, value.reshape(-1, heads, dim))
        return key


class PagedAttention(reference.Attention):
    """One query token for each row of the block tables."""

    def __init__(self, heads, scale, kv_heads):
        super().__init__(AttentionShape(heads, kv_heads, SHAPE.head_dim, scale))

    def construct(self, query, key_cache, value_cache, tables, lengths):
        queries = query.reshape(query.shape[0], self.heads, self.head_dim)
        return self._attend(
            queries, ops.gather(key_cache, tables, 0), ops.gather(value_cache, tables, 0), lengths
        )


class RmsNorm(nn.Cell):
    """Returns (norm, reciprocal of the root mean square), as the fused operator does."""

    def __init__(self, epsilon):
        super().__init__()
        self.epsilon = epsilon

    def construct(self, x, weight):
        inverse = ops.rsqrt(ops.mean(x * x, -1, True) + self.epsilon)
        return x * inverse * weight, inverse


@pytest.fixture
def kernels(monkeypatch):
    initialise("CPU")
    monkeypatch.setattr(ops.auto_generate, "ReshapeAndCache", ReshapeAndCache)
    monkeypatch.setattr(ops.auto_generate, "PagedAttention", PagedAttention)
    monkeypatch.setattr(ops, "RmsNorm", RmsNorm)
    return ascend.AscendKernels()


def attend(kernels, qkv, slots, rows, tables, lengths):
    caches = [
        Parameter(Tensor(np.zeros(shape, np.float32)), name=f"{kernels.name}.{which}")
        for which, shape in zip("kv", kernels.cache_shapes(SHAPE, GEOMETRY), strict=True)
    ]
    integers = [Tensor(np.asarray(array), mindspore.int32) for array in (slots, rows, tables, lengths)]
    return kernels.attention(SHAPE)(Tensor(qkv), *caches, *integers).asnumpy()


def test_attention_is_the_references(kernels):
    """Two sequences of 5 and 20 tokens and two tokens of padding, through the same caches layout."""
    generator = np.random.default_rng(0)
    lengths = [*range(1, 6), *range(1, 21), 0, 0]
    rows = [0] * 5 + [1] * 20 + [0, 0]
    tables = [[4, 0], [2, 5]] + [[0, 0]] * 25
    slots = [
        tables[row][(n - 1) // 16] * 16 + (n - 1) % 16 if n else -1
        for row, n in zip(rows, lengths, strict=True)
    ]
    qkv = generator.standard_normal((27, SHAPE.qkv_width), np.float32)
    found = attend(kernels, qkv, slots, rows, tables, lengths)
    wanted = attend(reference.ReferenceKernels(), qkv, slots, rows, tables, lengths)
    np.testing.assert_allclose(found[:25], wanted[:25], atol=1e-6)


@pytest.mark.parametrize("centred", [False, True])
def test_norms_are_the_references(kernels, centred):
    generator = np.random.default_rng(1)
    x, residual = (Tensor(generator.standard_normal((3, 12), np.float32)) for _ in range(2))
    weight, bias = (Tensor(generator.standard_normal(12, np.float32)) for _ in range(2))
    plain = reference.ReferenceKernels()
    for found, wanted in zip(
        kernels.add_norm(1e-5, centred)(x, residual, weight, bias),
        plain.add_norm(1e-5, centred)(x, residual, weight, bias),
        strict=True,
    ):
        np.testing.assert_allclose(found.asnumpy(), wanted.asnumpy(), atol=1e-5)


def test_a_sliding_window_is_refused(kernels):
    with pytest.raises(ConfigError, match="no sliding window .* 7 tokens"):
        kernels.attention(AttentionShape(4, 2, 8, 0.3, window=7))


@pytest.mark.parametrize(("name", "dtype"), [("native", "auto"), ("reference", "auto"), ("auto", "bfloat16")])
def test_other_kernels_and_half_types_are_refused(name, dtype):
    with pytest.raises(ConfigError, match="not with runtime.device_target=Ascend"):
        choose_kernels(name, "Ascend", dtype=dtype)
    assert choose_kernels("auto", "Ascend", dtype="float32").dtype == np.float32
