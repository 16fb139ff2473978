"""The assistant: a smaller model with a cache of its own that drafts tokens for the large one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Items

from mindbatch.decoding import Draft, Row
from mindbatch.decoding.guess import guess
from mindbatch.engine.assistant_twin import Twin
from mindbatch.engine.block_manager import BlockManager
from mindbatch.engine.prefix_cache import PrefixCache
from mindbatch.engine.runner import Runner
from mindbatch.engine.scheduler import ScheduledTokens, Step
from mindbatch.engine.settings import EngineSettings


class Assistant:
    """Drafts for many rows at once; what a row is given depends on the row alone.

    Of every row it has drafted for it keeps a twin, whose tokens are in its cache, and computes what the row
    has become since. When blocks run out, the twins that have not been asked for longest are dropped, and
    rows that do not fit together are drafted for one after another.
    """

    def __init__(self, runner: Runner, settings: EngineSettings) -> None:
        """`settings` are of the assistant's own runner; its seq_length is at most the model's positions."""
        self.blocks = BlockManager(settings.num_blocks, settings.block_size)
        self._runner = runner
        self._settings = settings
        self._prefixes = PrefixCache(self.blocks, settings)
        self._twins: dict[int, Twin] = {}  # by the row's id; least recently used first
        # Positions that one row can have.
        self._positions = min(settings.seq_length, settings.num_blocks * settings.block_size)

    def propose(self, rows: Items[Row], counts: Items[int]) -> list[Draft | None]:
        """For each row a draft of `counts` tokens; of fewer after an end token, or where positions run out or
        the row's processors leave no token.

        None for a row that gets none, or that is not asked for any.
        """
        drafts: list[Draft | None] = [None] * len(rows)
        waiting: deque[tuple[int, Twin]] = deque()
        for place, (row, count) in enumerate(zip(rows, counts, strict=True)):
            length = len(row.prompt_token_ids) + row.step
            possible = min(count, self._positions - length + 1)  # the last token guessed is not computed
            if possible > 0:
                try:
                    twin = self._used(row)
                    twin.begin(possible)
                except Exception:  # as in `guess`; a row that is at fault fails without a draft too
                    self.forget(row)
                else:
                    waiting.append((place, twin))
        while waiting:
            together = self._seat(waiting)
            self._draft([twin for _, twin in together])
            for place, twin in together:
                drafts[place] = twin.draft()
        return drafts

    def forget(self, row: Row) -> None:
        """Frees what is kept of a row, if anything."""
        twin = self._twins.pop(id(row), None)
        if twin is not None:
            self.blocks.free(twin.sequence.block_table)

    def _used(self, row: Row) -> Twin:
        """The row's twin, old or new, as the most recently used one."""
        twin = self._twins.pop(id(row), None) or Twin(row)
        self._twins[id(row)] = twin
        return twin

    def _seat(self, waiting: deque[tuple[int, Twin]]) -> list[tuple[int, Twin]]:
        """Takes those from the front of the queue for whom there are blocks together; at least one."""
        seated: list[tuple[int, Twin]] = []
        needed = 0
        while waiting:
            twin = waiting[0][1]
            more = self.blocks.blocks_needed([twin.writes])
            kept = {id(other.row) for _, other in (*seated, waiting[0])}
            if not self._make_room(needed + more, kept):
                break
            needed += more
            seated.append(waiting.popleft())
            self._twins.setdefault(id(twin.row), twin)  # if it was dropped for those before it
        assert seated
        return seated

    def _make_room(self, needed: int, kept: set[int]) -> bool:
        """Drops twins but for those of the rows `kept` until so many blocks are free; whether they are."""
        droppable = [twin for key, twin in self._twins.items() if key not in kept]
        for twin in droppable:
            if needed <= self.blocks.num_free:
                break
            self.forget(twin.row)
        return needed <= self.blocks.num_free

    def _draft(self, twins: list[Twin]) -> None:
        """Computes what the twins lack and lets each guess its tokens; their blocks are known to be free."""
        while twins:
            step = self._step(twins)
            output = self._runner.run(step)
            by_group = {id(twin.group): twin for twin in twins}
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
                guesses = guess([twin.sequence.row for twin in ready], output.logits(ends))
                for twin, guessed in zip(ready, guesses, strict=True):
                    twin.append(guessed)
            twins = [twin for twin in twins if not twin.is_done]

    def _step(self, twins: Items[Twin]) -> Step:
        """As many tokens of the twins as a step holds, first come first served."""
        step = Step()
        for twin in twins:
            sequence = twin.sequence
            left = self._settings.max_batched_tokens - step.num_tokens
            if left == 0:
                break
            if not sequence.block_table and not self._share_prefix(twin, step):
                continue
            start = sequence.num_computed_tokens
            stop = min(len(sequence), start + left)
            step.copies += self.blocks.prepare_write(sequence.block_table, start, stop)
            settled = min(stop, twin.num_settled_tokens)  # what is guessed may be refused
            step.filled.update(self._prefixes.filled(twin.group, sequence, start, settled))
            step.num_tokens += stop - start
            wanted = int(stop == len(sequence))
            step.scheduled.append(ScheduledTokens(twin.group, sequence, start, stop, wanted))
        return step

    def _share_prefix(self, twin: Twin, step: Step) -> bool:
        """Begins a new twin with blocks that are known; False if this step computes more of them."""
        [prefix] = self._prefixes.find(twin.group)
        if self._prefixes.is_coming(twin.group, [prefix], step.filled):
            return False
        twin.sequence.block_table = self.blocks.share(prefix)
        twin.sequence.num_computed_tokens = len(prefix) * self._settings.block_size
        return True
