"""Finding cache blocks again by what they hold: chained digests of full blocks of tokens."""

from array import array
from collections.abc import Collection, Iterator
from collections.abc import Sequence as Items
from hashlib import blake2b
from typing import NamedTuple

from mindbatch.engine.block_manager import BlockManager
from mindbatch.engine.sequence import Sequence, SequenceGroup
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import Step

DIGEST_BYTES = 16


def root_digest(adapter: str | None) -> bytes:
    """Digest that a chain begins with.

    Keys and values of one adapter, named by its digest, say nothing about another's.
    """
    return blake2b(repr(adapter).encode(), digest_size=DIGEST_BYTES).digest()


def block_digest(parent: bytes, tokens: Items[int]) -> bytes:
    """Names a full block by its tokens and, through its parent's digest, by all tokens before them."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=DIGEST_BYTES).digest()


class Prefix(NamedTuple):
    """The part of a sequence's beginning that need not be computed.

    blocks: that hold it. states: the slot of the state behind them, in models with recurrent layers.
    num_known_tokens: that blocks are known of; more than those where no state is known behind all of them.
    """

    blocks: list[int]
    states: list[int]
    num_known_tokens: int


class PrefixCache:
    """Finds blocks that hold the beginning of a sequence already, and names those that a step fills.

    Only full blocks have names, and the last token of a sequence is always left to compute: its logits choose
    the next one. So nobody writes into a block that was found. Where a model keeps states of sequences, a
    beginning is of use up to where one was registered: at the end of a step that ended with a full block.
    """

    def __init__(
        self, blocks: BlockManager, settings: EngineSettings, states: BlockManager | None = None
    ) -> None:
        """`states`: slots of recurrent states; None of models that have none."""
        self._blocks, self._states = blocks, states
        self._block_size = settings.block_size
        # Without use_past every step writes all blocks of its sequences anew; and what an encoder makes of a
        # token depends on those behind it, too.
        has_encoder = settings.decoder_start_id is not None
        self._enabled = settings.prefix_caching and settings.use_past and not has_encoder

    def find(self, group: SequenceGroup) -> list[Prefix]:
        """For each sequence of a request without blocks, its longest known beginning."""
        if not self._enabled:
            return [Prefix([], [], 0) for _ in group.sequences]
        return [self._found(self._wanted(group, sequence)) for sequence in group.sequences]

    def _found(self, digests: Items[bytes]) -> Prefix:
        blocks = self._blocks.find(digests)
        known = len(blocks) * self._block_size
        if self._states is None:
            return Prefix(blocks, [], known)
        while blocks and not (states := self._states.find([digests[len(blocks) - 1]])):
            blocks.pop()
        return Prefix(blocks, states if blocks else [], known)

    def is_coming(self, group: SequenceGroup, prefixes: Items[Prefix], step: Step) -> bool:
        """True if a step computes what continues one of these prefixes."""
        digests: Collection[bytes] = step.filled if self._states is None else step.states
        if not digests or not self._enabled:
            return False
        most = 1 if self._states is None else None  # a state is not behind every block
        return any(
            digest in digests
            for sequence, prefix in zip(group.sequences, prefixes, strict=True)
            for digest in self._wanted(group, sequence)[len(prefix.blocks) :][:most]
        )

    def filled(
        self, group: SequenceGroup, sequence: Sequence, start: int, stop: int
    ) -> Iterator[tuple[bytes, int]]:
        """Digest and block of each block that is full once positions start .. stop - 1 are written."""
        first, last = start // self._block_size, stop // self._block_size
        if first == last or not self._enabled:
            return
        digests = self._digests(group, sequence, last)
        yield from zip(digests[first:last], sequence.block_table[first:last], strict=True)

    def state_behind(self, group: SequenceGroup, sequence: Sequence, stop: int) -> bytes | None:
        """Digest of the state behind positions 0 .. stop - 1; None where nobody could go on from there."""
        count, rest = divmod(stop, self._block_size)
        if rest or self._states is None or not self._enabled:
            return None
        return self._digests(group, sequence, count)[count - 1]

    def _wanted(self, group: SequenceGroup, sequence: Sequence) -> list[bytes]:
        """Digests of all blocks that the sequence could share: what is read off a token needs its states."""
        count = (len(sequence) - 1) // self._block_size
        if group.most_cached_tokens is not None:
            count = min(count, group.most_cached_tokens // self._block_size)
        return self._digests(group, sequence, count)[:count]

    def _digests(self, group: SequenceGroup, sequence: Sequence, count: int) -> list[bytes]:
        """Digests of at least `count` leading blocks; they are worked out once in a sequence's life."""
        digests, size = sequence.block_digests, self._block_size
        parent = digests[-1] if digests else _root(group, sequence)
        for start in range(len(digests) * size, count * size, size):
            parent = block_digest(parent, sequence.tokens(start, start + size))
            digests.append(parent)
        return digests


def _root(group: SequenceGroup, sequence: Sequence) -> bytes:
    """Digest that a sequence's chain begins with; it covers the whole context whose tokens see each other."""
    root = root_digest(None if group.adapter is None else group.adapter.digest)
    context = sequence.context
    return root if context is None else block_digest(root, sequence.tokens(0, context.length))
