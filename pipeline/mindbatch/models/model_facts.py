"""What the engine needs to know of a model before it is loaded, whoever runs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mindbatch.kernels.alibi import Alibi
from mindbatch.kernels.ascend.limits import ALIBI_NUMBERS, limit_faults
from mindbatch.models.architecture import TwoPositions


@dataclass(frozen=True)
class ModelFacts:
    """Sizes of a model that a folder describes.

    max_positions: most tokens of prompt and output.
    num_parameters: numbers of its weights.
    rank_parameters: of the weights of a rank of each pipeline stage, where that is known; at least so many.
    cached_numbers: of the keys and values of one token, over all layers, padding included.
    head_dim: numbers of an attention head that a device's limits hold for; 0 for latent attention.
    alibi: what is added to attention's scores by position, if anything is.
    has_softcap: scores of attention are capped.
    decoder_start_id: of an encoder-decoder, whose prompts are its encoder's input; None of others.
    two_positions: of a model whose prompts have a context, whose tokens see each other; None of others.
    devices: that run it.
    """

    model_type: str
    vocab_size: int
    max_positions: int
    num_parameters: int
    cached_numbers: int
    head_dim: int
    alibi: Alibi | None = None
    has_softcap: bool = False
    decoder_start_id: int | None = None
    two_positions: TwoPositions | None = None
    devices: tuple[str, ...] = ("CPU", "Ascend")
    rank_parameters: tuple[int, ...] = ()

    @property
    def sees_ahead(self) -> bool:
        """Whether tokens of a prompt see those behind them."""
        return self.decoder_start_id is not None or self.two_positions is not None

    def cache_bytes_per_token(self, itemsize: int, device: str = "CPU") -> int:
        """Bytes of one token's keys and values."""
        if device != "Ascend" or self.alibi is None:
            return self.cached_numbers * itemsize
        return -(-self.cached_numbers * self._ascend_head // self.head_dim) * itemsize

    @property
    def _ascend_head(self) -> int:
        return self.head_dim + (ALIBI_NUMBERS if self.alibi is not None else 0)

    def ascend_faults(self, block_size: int) -> Iterator[str]:
        """Why Ascend's operators do not take the model, or blocks of so many tokens."""
        return limit_faults(
            self._ascend_head,
            block_size,
            has_rounded_alibi=self.alibi is not None and self.alibi.is_rounded,
            has_softcap=self.has_softcap,
            has_encoder=self.decoder_start_id is not None,
            has_two_positions=self.two_positions is not None,
        )
