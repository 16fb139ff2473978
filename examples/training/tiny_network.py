"""GPT-2 as a small trainable MindSpore network whose parameters bear Hugging Face's names and layouts."""

# mypy: allow-subclassing-any

import math
from dataclasses import dataclass

import mindspore as ms
import numpy as np
import numpy.typing as npt
from mindspore import Parameter, Tensor, nn, ops

LAYER_NORM_EPSILON = 1e-5
INITIAL_STD = 0.1  # about width ** -0.5; GPT-2's own 0.02 suits wider networks and learns far slower here


@dataclass(frozen=True)
class Shape:
    """The sizes of a GPT-2; its feed-forward layer is four times `width`."""

    vocab_size: int
    positions: int = 256
    width: int = 96
    layers: int = 3
    heads: int = 4


class TinyGPT2(nn.Cell):
    """Token ids int32 [B, T] to logits float32 [B, T, V], with T at most `shape.positions`.

    The attribute names make the parameter names: `transformer.h.0.attn.c_attn.weight` and so on, as in
    Hugging Face's GPT2LMHeadModel with tied embeddings (no `lm_head`).
    """

    def __init__(self, shape: Shape, rng: np.random.Generator) -> None:
        super().__init__()
        self.transformer = _Transformer(shape, rng)

    def construct(self, tokens: Tensor) -> Tensor:
        return self.with_positions(tokens, self.transformer.wpe.weight)

    def with_positions(self, tokens: Tensor, table: Tensor) -> Tensor:
        """The logits, had the network another position table, [P, W] or one a row: [B, P, W]."""
        hidden = self.transformer(tokens, table)
        return ops.matmul(hidden, self.transformer.wte.weight.T)


class _Transformer(nn.Cell):
    def __init__(self, shape: Shape, rng: np.random.Generator) -> None:
        super().__init__()
        self.wte = _Embedding(rng.normal(0.0, INITIAL_STD, (shape.vocab_size, shape.width)))
        self.wpe = _Embedding(waves(shape.positions, shape.width))
        self.h = nn.CellList([_Block(shape, rng) for _ in range(shape.layers)])
        self.ln_f = _LayerNorm(shape.width)
        # Added to the scores: no position may look at a later one.
        self.mask = Tensor(np.triu(np.full((shape.positions, shape.positions), -1e9, np.float32), k=1))

    def construct(self, tokens: Tensor, table: Tensor) -> Tensor:
        length = tokens.shape[1]
        hidden = self.wte(tokens) + table[..., :length, :]  # [B, T, W]
        for block in self.h:
            hidden = block(hidden, self.mask[:length, :length])
        return self.ln_f(hidden)


class _Block(nn.Cell):
    def __init__(self, shape: Shape, rng: np.random.Generator) -> None:
        super().__init__()
        self.ln_1 = _LayerNorm(shape.width)
        self.attn = _Attention(shape, rng)
        self.ln_2 = _LayerNorm(shape.width)
        self.mlp = _FeedForward(shape, rng)

    def construct(self, hidden: Tensor, mask: Tensor) -> Tensor:
        hidden = hidden + self.attn(self.ln_1(hidden), mask)
        return hidden + self.mlp(self.ln_2(hidden))


class _Attention(nn.Cell):
    def __init__(self, shape: Shape, rng: np.random.Generator) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query_by_key = ops.BatchMatMul(transpose_b=True)
        self.scale = (shape.width // shape.heads) ** -0.5
        self.c_attn = _Linear(shape.width, 3 * shape.width, INITIAL_STD, rng)
        self.c_proj = _Linear(shape.width, shape.width, _residual_std(shape), rng)

    def construct(self, hidden: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        query, key, value = (
            part.reshape(batch, length, self.heads, width // self.heads).swapaxes(1, 2)  # [B, heads, T, D]
            for part in ops.split(self.c_attn(hidden), width, axis=-1)
        )
        scores = self.query_by_key(query, key) * self.scale + mask  # [B, heads, T, T]
        mixed = ops.matmul(ops.softmax(scores, axis=-1), value)
        return self.c_proj(mixed.swapaxes(1, 2).reshape(batch, length, width))


class _FeedForward(nn.Cell):
    def __init__(self, shape: Shape, rng: np.random.Generator) -> None:
        super().__init__()
        self.c_fc = _Linear(shape.width, 4 * shape.width, INITIAL_STD, rng)
        self.c_proj = _Linear(4 * shape.width, shape.width, _residual_std(shape), rng)

    def construct(self, hidden: Tensor) -> Tensor:
        return self.c_proj(_gelu(self.c_fc(hidden)))


class _Linear(nn.Cell):
    """x @ weight + bias, with the weight [in, out] as GPT-2's Conv1D keeps it."""

    def __init__(self, inputs: int, outputs: int, std: float, rng: np.random.Generator) -> None:
        super().__init__()
        self.weight = Parameter(
            Tensor(rng.normal(0.0, std, (inputs, outputs)).astype(np.float32)), name="weight"
        )
        self.bias = Parameter(ops.zeros((outputs,), ms.float32), name="bias")

    def construct(self, hidden: Tensor) -> Tensor:
        return ops.matmul(hidden, self.weight) + self.bias


class _Embedding(nn.Cell):
    def __init__(self, rows: npt.NDArray[np.float64]) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(rows.astype(np.float32)), name="weight")

    def construct(self, ids: Tensor) -> Tensor:
        return ops.gather(self.weight, ids, 0)


class _LayerNorm(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = Parameter(ops.ones((width,), ms.float32), name="weight")
        self.bias = Parameter(ops.zeros((width,), ms.float32), name="bias")
        # The primitive, because ops.layer_norm has no CPU kernel (MindSpore 2.9).
        self.normalise = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=LAYER_NORM_EPSILON)

    def construct(self, hidden: Tensor) -> Tensor:
        return self.normalise(hidden, self.weight, self.bias)[0]


def _gelu(x: Tensor) -> Tensor:
    """GPT-2's tanh form of GELU; five times as fast on the CPU as ops.gelu (MindSpore 2.9)."""
    return 0.5 * x * (1 + ops.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x * x * x)))


def waves(positions: int, width: int) -> npt.NDArray[np.float64]:
    """Sines and cosines of each position (Vaswani et al. 2017), with the standard deviation INITIAL_STD.

    Positions are learnt in GPT-2; starting from these, a head finds "the token before" in far fewer steps.
    """
    frequencies = 10000.0 ** (-np.arange(0, width, 2) / width)
    angles = np.arange(positions)[:, None] * frequencies
    waves: npt.NDArray[np.float64] = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    waves *= INITIAL_STD * 2**0.5
    return waves


def _residual_std(shape: Shape) -> float:
    # Each layer adds to the residual stream twice; GPT-2 scales those weights so that it does not grow.
    return float(INITIAL_STD / (2 * shape.layers) ** 0.5)
