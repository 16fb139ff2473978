"""The assistant: a smaller model with a cache of its own that drafts tokens for the large one."""

from collections import deque
from collections.abc import Sequence as Items

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.registry import strategy_for
from mindbatch.decoding.row import Draft, Row, TokenChoice
from mindbatch.decoding.speculative import Guess, guess
from mindbatch.engine.block_manager import BlockManager, Write
from mindbatch.engine.prefix_cache import PrefixCache
from mindbatch.engine.request import Request
from mindbatch.engine.sequence import Sequence, SequenceGroup
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import Runner, ScheduledTokens, Step

_PLAIN = DecodingParams()


class DraftSequence:
    """Draft sequence of a row: a copy that is ahead of the row by the guessed tokens.

    row: the row itself, which only grows; the reference keeps its id from being reused.
    group: a group of the assistant with one sequence, whose row is the copy.
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
    def num_row_tokens(self) -> int:
        """Tokens of the row itself."""
        return len(self.row.prompt_token_ids) + self.row.step

    @property
    def writes(self) -> Write:
        """Cache writes until all wanted tokens are guessed."""
        sequence = self.sequence
        return sequence.block_table, sequence.num_computed_tokens, self.num_row_tokens + self._wanted - 1

    @property
    def is_done(self) -> bool:
        """True if there is nothing more to guess: enough, or an end."""
        if not self._guesses:
            return self._wanted == 0
        row = self.sequence.row
        ended = self._guesses[-1].token_id in row.eos_token_ids
        complete = row.constraint is not None and row.constraint.is_complete
        return ended or complete or len(self._guesses) == self._wanted

    def begin(self, wanted: int) -> None:
        """Truncates the copy to the prefix that it shares with the row, then appends the row's other tokens.

        Keys and values of the shared tokens stay; the last token is always computed anew, for its logits
        give the first guess.
        """
        sequence, row = self.sequence, self.row
        earlier, now = sequence.row.output_token_ids, row.output_token_ids
        agreed = self._agreed
        while agreed < min(len(earlier), len(now)) and earlier[agreed] == now[agreed]:
            agreed += 1
        num_shared_tokens = len(row.prompt_token_ids) + agreed
        sequence.row = row.fork()
        sequence.num_computed_tokens = min(sequence.num_computed_tokens, num_shared_tokens, len(sequence) - 1)
        self._agreed = row.step
        self._wanted = wanted
        self._guesses = []

    def append(self, guessed: Guess | None) -> None:
        """Appends a guess; None ends the draft."""
        if guessed is None:
            self._wanted = len(self._guesses)
            return
        try:
            self.sequence.row.append(TokenChoice(guessed.token_id, 0.0))
            self._guesses.append(guessed)
        except Exception:  # as in `guess`: the row itself may never come to this token
            self._wanted = len(self._guesses)

    def result(self) -> Draft | None:
        if not self._guesses:
            return None
        tokens = tuple(guessed.token_id for guessed in self._guesses)
        distributions = [one.probabilities for one in self._guesses if one.probabilities is not None]
        return Draft(tokens, tuple(distributions) if distributions else None)


class Assistant:
    """Drafts tokens for many rows at once; a row's draft depends on the row alone.

    It keeps a draft sequence of every row it has drafted for, with its tokens in the cache, and computes only
    what the row has gained since. When blocks run out, the least recently used ones are dropped, and rows
    that do not fit together are drafted for one after another.
    """

    def __init__(self, runner: Runner, settings: EngineSettings, cache_part: int = 0) -> None:
        """`settings` are those of the assistant's own runner; its seq_length is at most the model's
        positions.

        cache_part: see `Scheduler`.
        """
        first_block = cache_part * settings.num_blocks
        self.blocks = BlockManager(settings.num_blocks, settings.block_size, first_block)
        self._runner = runner
        self._settings = settings
        self._prefixes = PrefixCache(self.blocks, settings)
        self._drafts: dict[int, DraftSequence] = {}  # by the row's id; least recently used first
        # Positions that one row can have.
        self._positions = min(settings.seq_length, settings.num_blocks * settings.block_size)

    def propose(self, rows: Items[Row], counts: Items[int]) -> list[Draft | None]:
        """Drafts `counts` tokens for each row; fewer after an end token, or where positions run out or the
        row's processors allow no token.

        The draft is None for a row without tokens to guess.
        """
        results: list[Draft | None] = [None] * len(rows)
        waiting: deque[tuple[int, DraftSequence]] = deque()
        for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
            length = len(row.prompt_token_ids) + row.step
            possible = min(count, self._positions - length + 1)  # the last token guessed is not computed
            if possible > 0:
                try:
                    draft = self._used(row)
                    draft.begin(possible)
                except Exception:  # as in `guess`; a row that is wrong fails without a draft too
                    self.forget(row)
                else:
                    waiting.append((index, draft))
        while waiting:
            together = self._admit(waiting)
            self._draft([draft for _, draft in together])
            for index, draft in together:
                results[index] = draft.result()
        return results

    def forget(self, row: Row) -> None:
        draft = self._drafts.pop(id(row), None)
        if draft is not None:
            self.blocks.free(draft.sequence.block_table)

    def _used(self, row: Row) -> DraftSequence:
        """Returns the draft sequence of a row, old or new, and marks it as the most recently used."""
        draft = self._drafts.pop(id(row), None) or DraftSequence(row)
        self._drafts[id(row)] = draft
        return draft

    def _admit(self, waiting: deque[tuple[int, DraftSequence]]) -> list[tuple[int, DraftSequence]]:
        """Takes the first draft sequences of the queue whose blocks fit together; at least one."""
        admitted: list[tuple[int, DraftSequence]] = []
        needed = 0
        while waiting:
            draft = waiting[0][1]
            more = self.blocks.blocks_needed([draft.writes])
            kept = {id(other.row) for _, other in (*admitted, waiting[0])}
            if not self._free_blocks(needed + more, kept):
                break
            needed += more
            admitted.append(waiting.popleft())
            self._drafts.setdefault(id(draft.row), draft)  # if it was dropped for those before it
        assert admitted
        return admitted

    def _free_blocks(self, needed: int, kept: set[int]) -> bool:
        """Drops draft sequences of rows not in `kept` until so many blocks are free; False if too few are."""
        droppable = [draft for key, draft in self._drafts.items() if key not in kept]
        for draft in droppable:
            if needed <= self.blocks.num_free:
                break
            self.forget(draft.row)
        return needed <= self.blocks.num_free

    def _draft(self, drafts: list[DraftSequence]) -> None:
        """Computes what the draft sequences lack and guesses their next tokens; their blocks are free."""
        while drafts:
            step = self._step(drafts)
            output = self._runner.run(step)
            by_group = {id(draft.group): draft for draft in drafts}
            ends, ready, end = [], [], 0
            for tokens in step.scheduled:
                tokens.sequence.num_computed_tokens = tokens.stop
                end += tokens.stop - tokens.start
                if tokens.num_logits:
                    ends.append(end - 1)
                    ready.append(by_group[id(tokens.group)])
            for digest, block in step.filled.items():
                self.blocks.register(block, digest)
            if ready:
                guesses = guess([draft.sequence.row for draft in ready], output.logits(ends))
                for draft, guessed in zip(ready, guesses, strict=True):
                    draft.append(guessed)
            drafts = [draft for draft in drafts if not draft.is_done]

    def _step(self, drafts: Items[DraftSequence]) -> Step:
        """Schedules as many tokens of the draft sequences as a step holds, first come first served."""
        step = Step()
        for draft in drafts:
            sequence = draft.sequence
            left = self._settings.max_batched_tokens - step.num_tokens
            if left == 0:
                break
            if not sequence.block_table and not self._share_prefix(draft, step):
                continue
            start = sequence.num_computed_tokens
            stop = min(len(sequence), start + left)
            step.copies += self.blocks.prepare_write(sequence.block_table, start, stop)
            verified = min(stop, draft.num_row_tokens)  # guesses may be rejected
            step.filled.update(self._prefixes.filled(draft.group, sequence, start, verified))
            step.num_tokens += stop - start
            wanted = int(stop == len(sequence))
            step.scheduled.append(ScheduledTokens(draft.group, sequence, start, stop, wanted))
        return step

    def _share_prefix(self, draft: DraftSequence, step: Step) -> bool:
        """Begins a new draft sequence with cached blocks; False if this step computes more of them."""
        [prefix] = self._prefixes.find(draft.group)
        if self._prefixes.is_coming(draft.group, [prefix], step):
            return False
        draft.sequence.block_table = self.blocks.share(prefix.blocks)
        draft.sequence.num_computed_tokens = len(prefix.blocks) * self._settings.block_size
        return True
