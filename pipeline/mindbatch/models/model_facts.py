"""What the engine needs to know of a model before it is loaded, whoever runs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mindbatch.kernels.ascend.limits import limit_faults


@dataclass(frozen=True)
class ModelFacts:
    """Sizes of a model that a folder describes.

    max_positions: most tokens of prompt and output.
    num_parameters: numbers of its weights.
    rank_parameters: of the weights of a rank of each pipeline stage, where that is known; at least so many.
    cached_numbers: of the keys and values of one token, over all layers, padding included.
    head_dim: numbers of an attention head that a device's limits hold for; 0 for latent attention.
    window: the narrowest sliding window in tokens, 0 for none.
    has_alibi: positions enter as biases of attention's scores.
    has_softcap: scores of attention are capped.
    has_experts: a mixture of experts that native kernels compute.
    decoder_start_id: of an encoder-decoder, whose prompts are its encoder's input; None of others.
    devices: that run it.
    """

    model_type: str
    vocab_size: int
    max_positions: int
    num_parameters: int
    cached_numbers: int
    head_dim: int
    window: int = 0
    has_alibi: bool = False
    has_softcap: bool = False
    has_experts: bool = False
    decoder_start_id: int | None = None
    devices: tuple[str, ...] = ("CPU", "Ascend")
    rank_parameters: tuple[int, ...] = ()

    def cache_bytes_per_token(self, itemsize: int) -> int:
        """Bytes of one token's keys and values."""
        return self.cached_numbers * itemsize

    def ascend_faults(self, seq_length: int, block_size: int) -> Iterator[str]:
        """Why Ascend's operators do not take the model, or sequences or blocks of so many tokens."""
        return limit_faults(
            self.head_dim,
            self.window,
            seq_length,
            block_size,
            has_alibi=self.has_alibi,
            has_softcap=self.has_softcap,
            has_experts=self.has_experts,
            has_encoder=self.decoder_start_id is not None,
        )
