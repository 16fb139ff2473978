"""What the assistant model keeps of one row: its own sequence, which runs ahead of the row."""

from __future__ import annotations

from mindbatch.decoding import DecodingParams, Draft, Row, strategy_for
from mindbatch.decoding.choice import Choice
from mindbatch.decoding.guess import Guess
from mindbatch.engine.block_manager import Write
from mindbatch.engine.request import Request
from mindbatch.engine.sequence import Sequence, SequenceGroup

_PLAIN = DecodingParams()


class Twin:
    """A copy of a row that goes on with what the assistant guesses.

    row: the row itself, which only ever grows; holding it keeps its id from being given to another.
    group: the assistant's own, of one sequence whose row is the copy.
    """

    def __init__(self, row: Row) -> None:
        self.row = row
        # Nothing but the tokens is read off the request.
        request = Request(row.key, tuple(row.prompt_token_ids), _PLAIN)
        self.group = SequenceGroup(request, strategy_for(_PLAIN), [Sequence(row.fork(), None)], 0)
        self._agreed = row.step  # outputs of the row that the copy is known to share
        self._wanted = 0
        self._guesses: list[Guess] = []

    @property
    def sequence(self) -> Sequence:
        """The assistant's sequence: the row, then its guesses."""
        return self.group.sequences[0]

    @property
    def num_settled_tokens(self) -> int:
        """Tokens of the row itself."""
        return len(self.row.prompt_token_ids) + self.row.step

    @property
    def writes(self) -> Write:
        """What is written in the cache until all wanted tokens are guessed."""
        sequence = self.sequence
        return sequence.block_table, sequence.num_computed_tokens, self.num_settled_tokens + self._wanted - 1

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to guess: enough, or an end."""
        if not self._guesses:
            return self._wanted == 0
        row = self.sequence.row
        ended = self._guesses[-1].token_id in row.eos_token_ids
        complete = row.constraint is not None and row.constraint.is_complete
        return ended or complete or len(self._guesses) == self._wanted

    def begin(self, wanted: int) -> None:
        """Becomes what the row is now; keeps of the computed tokens those that the row has come to share.

        The last token is always left to compute: its logits give the first guess.
        """
        sequence, row = self.sequence, self.row
        earlier, now = sequence.row.output_token_ids, row.output_token_ids
        agreed = self._agreed
        while agreed < min(len(earlier), len(now)) and earlier[agreed] == now[agreed]:
            agreed += 1
        held = len(row.prompt_token_ids) + agreed
        sequence.row = row.fork()
        sequence.num_computed_tokens = min(sequence.num_computed_tokens, held, len(sequence) - 1)
        self._agreed = row.step
        self._wanted = wanted
        self._guesses = []

    def append(self, guessed: Guess | None) -> None:
        """Goes on with a guess; None ends the draft."""
        if guessed is None:
            self._wanted = len(self._guesses)
            return
        try:
            self.sequence.row.append(Choice(guessed.token_id, 0.0))
            self._guesses.append(guessed)
        except Exception:  # as in `guess`: the row itself may never come to this token
            self._wanted = len(self._guesses)

    def draft(self) -> Draft | None:
        """The guesses, for the row to have verified; None if there are none."""
        if not self._guesses:
            return None
        tokens = tuple(guessed.token_id for guessed in self._guesses)
        distributions = [one.probabilities for one in self._guesses if one.probabilities is not None]
        return Draft(tokens, tuple(distributions) if distributions else None)
