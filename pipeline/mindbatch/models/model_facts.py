"""What the engine needs to know of a model before it is loaded, whoever runs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mindbatch.kernels.ascend.limits import ALIBI_NUMBERS, limit_faults, most_gathered_tokens
from mindbatch.kernels.memory import FLOAT32
from mindbatch.models.architecture import TwoPositions


@dataclass(frozen=True)
class ModelFacts:
    """Sizes of a model that a folder describes.

    max_positions: most tokens of prompt and output.
    num_parameters: numbers of its weights.
    expert_numbers: of a rank, that the C++ layers of experts keep for each token of a step.
    rank_parameters: of the weights of a rank of each pipeline stage, where that is known; at least so many.
    cached_numbers: of the keys and values of one token, over all layers, padding included.
    head_dim: numbers of an attention head that a device's limits hold for; 0 for latent attention.
    layer_numbers: of the keys and values of one token in a layer.
    has_alibi: Ascend's heads have the numbers of ALiBi more.
    is_gathered: Ascend computes attention by plain operators: see `needs_gathering`.
    decoder_start_id: of an encoder-decoder, whose prompts are its encoder's input; None of others.
    two_positions: of a model whose prompts have a context, whose tokens see each other; None of others.
    """

    model_type: str
    vocab_size: int
    max_positions: int
    num_parameters: int
    cached_numbers: int
    head_dim: int
    layer_numbers: int = 0
    has_alibi: bool = False
    is_gathered: bool = False
    decoder_start_id: int | None = None
    two_positions: TwoPositions | None = None
    expert_numbers: int = 0
    rank_parameters: tuple[int, ...] = ()

    @property
    def sees_ahead(self) -> bool:
        """Whether tokens of a prompt see those behind them."""
        return self.decoder_start_id is not None or self.two_positions is not None

    def cache_bytes_per_token(self, itemsize: int, device: str = "CPU") -> int:
        """Bytes of one token's keys and values."""
        if device != "Ascend" or not self.has_alibi:
            return self.cached_numbers * itemsize
        return -(-self.cached_numbers * self._ascend_head // self.head_dim) * itemsize

    def expert_bytes(self, num_tokens: int, device: str) -> int:
        """Of what layers of experts keep of a step's rows on a CPU, all in the same memory."""
        return num_tokens * self.expert_numbers * FLOAT32.itemsize if device == "CPU" else 0

    @property
    def _ascend_head(self) -> int:
        return self.head_dim + (ALIBI_NUMBERS if self.has_alibi else 0)

    def ascend_faults(self, block_size: int) -> Iterator[str]:
        """Why Ascend's operators do not take the model, or blocks of so many tokens."""
        return limit_faults(
            self._ascend_head,
            block_size,
            is_gathered=self.is_gathered,
        )

    def most_tokens_of_step(self, device: str, seq_length: int) -> int | None:
        """Of a step, where attention's memory bounds them."""
        if device != "Ascend" or not self.is_gathered:
            return None
        return most_gathered_tokens(seq_length, self.layer_numbers)
