"""The context of a prompt: tokens that see each other, and the two positions of all that follows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mindbatch.io.errors import PromptError
from mindbatch.kernels.step import IntArray
from mindbatch.models.architecture import BlockPositions2D


@dataclass(frozen=True, slots=True)
class PromptContext:
    """Context of one prompt of a model with `BlockPositions2D`.

    length: tokens of the context, which begins the prompt. mask: the position of all tokens behind it.
    """

    length: int
    mask: int

    def positions(self, places: IntArray) -> IntArray:
        """The two positions [T, 2] of the tokens at these places of the sequence."""
        behind = places >= self.length
        pairs = (np.where(behind, self.mask, places), np.where(behind, places - self.length + 1, 0))
        positions: IntArray = np.stack(pairs, axis=1).astype(np.int32)
        return positions

    def lengths(self, places: IntArray) -> IntArray:
        """Number of tokens that each of these sees: the whole context from within it."""
        seen: IntArray = np.maximum(places + 1, self.length, dtype=np.int32)
        return seen


def context_of(key: str, prompt: Sequence[int], model: BlockPositions2D) -> PromptContext:
    """The context of a prompt. A mask of the first kind counts, and of those of a kind the first.

    Raises:
        PromptError: the prompt lacks the token that ends the context, or a mask.
    """
    masks = [prompt.index(mask_id) for mask_id in model.mask_ids if mask_id in prompt]
    if model.start_id not in prompt or not masks:
        raise PromptError(
            f"{key}: the prompt must have token {model.start_id}, behind which the output begins, and a mask "
            f"({' or '.join(map(str, model.mask_ids))}), from which positions are counted; a tokenizer adds "
            "both, and to token ids they must be added"
        )
    return PromptContext(prompt.index(model.start_id), masks[0])
