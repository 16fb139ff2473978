"""Row: what decoding needs to know of one sequence."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.params import DecodingParams


@dataclass(slots=True)
class Row:
    """One sequence of a step's batch; its logits are those that follow its last token.

    `prompt_token_ids` must not change during the row's life; the engine appends to `output_token_ids`.
    `row_hash` (see `philox.row_hash`) and `sample_index` place the row in the random stream.
    """

    params: DecodingParams
    prompt_token_ids: Sequence[int]
    output_token_ids: list[int]
    eos_token_ids: tuple[int, ...]
    row_hash: int
    sample_index: int = 0
    _prompt_distinct: NDArray[np.int64] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def step(self) -> int:
        """Tokens of output so far, which numbers the step about to be made."""
        return len(self.output_token_ids)

    @property
    def ends_too_early(self) -> bool:
        """Whether the row is still below min_length or min_new_tokens, so that it may not end."""
        prompt_length = len(self.prompt_token_ids)
        return prompt_length + self.step < self.params.min_total_tokens(prompt_length)

    def seen_token_ids(self) -> NDArray[np.int64]:
        """Tokens of the prompt and the output, in no order and with repeats.

        The prompt's part is kept: a long prompt is not converted again at every step.
        """
        if self._prompt_distinct is None:
            self._prompt_distinct = np.unique(np.asarray(self.prompt_token_ids, dtype=np.int64))
        return np.concatenate([self._prompt_distinct, np.asarray(self.output_token_ids, dtype=np.int64)])
