"""Finds cache blocks by their contents: chained digests of full blocks of tokens."""

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
    """Returns the digest that a chain begins with; `adapter` is the digest of an adapter.

    Adapters have different keys and values for the same tokens.
    """
    return blake2b(repr(adapter).encode(), digest_size=DIGEST_BYTES).digest()


def block_digest(parent: bytes, tokens: Items[int]) -> bytes:
    """Returns the digest of a full block's tokens and, through its parent, of all tokens before them."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=DIGEST_BYTES).digest()


class Prefix(NamedTuple):
    """The prefix of a sequence that need not be computed.

    blocks: the cache blocks with its keys and values.
    states: the slot of the recurrent state after these blocks, in models with recurrent layers.
    num_known_tokens: tokens whose blocks are in the cache; more than `blocks` where their state is not.
    """

    blocks: list[int]
    states: list[int]
    num_known_tokens: int


class PrefixCache:
    """Finds blocks that have the prefix of a sequence already, and registers those that a step fills.

    Only full blocks are registered, and the last token of a sequence is always computed, as its logits choose
    the next one. So a block that was found is never written. In a model with recurrent layers a prefix ends
    where a state was registered: at the end of a step that ended with a full block.
    """

    def __init__(
        self, blocks: BlockManager, settings: EngineSettings, states: BlockManager | None = None
    ) -> None:
        """`states`: slots of recurrent states; None without recurrent layers."""
        self._blocks, self._states = blocks, states
        self._block_size = settings.block_size
        # Without use_past every step writes all blocks of its sequences anew; and what an encoder makes of a
        # token depends on those behind it, too.
        has_encoder = settings.decoder_start_id is not None
        self._enabled = settings.prefix_caching and settings.use_past and not has_encoder

    def find(self, group: SequenceGroup) -> list[Prefix]:
        """Returns the longest cached prefix of each sequence of a request that has no blocks yet."""
        if not self._enabled:
            return [Prefix([], [], 0) for _ in group.sequences]
        return [self._prefix_of(self._wanted(group, sequence)) for sequence in group.sequences]

    def _prefix_of(self, digests: Items[bytes]) -> Prefix:
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
        limit = 1 if self._states is None else None  # a state is not behind every block
        return any(
            digest in digests
            for sequence, prefix in zip(group.sequences, prefixes, strict=True)
            for digest in self._wanted(group, sequence)[len(prefix.blocks) :][:limit]
        )

    def filled(
        self, group: SequenceGroup, sequence: Sequence, start: int, stop: int
    ) -> Iterator[tuple[bytes, int]]:
        """Yields digest and number of each block that positions start .. stop - 1 fill."""
        first, last = start // self._block_size, stop // self._block_size
        if first == last or not self._enabled:
            return
        digests = self._digests(group, sequence, last)
        yield from zip(digests[first:last], sequence.block_table[first:last], strict=True)

    def state_behind(self, group: SequenceGroup, sequence: Sequence, stop: int) -> bytes | None:
        """Returns the digest of the state after `stop` tokens; None where no prefix can end there."""
        count, rest = divmod(stop, self._block_size)
        if rest or self._states is None or not self._enabled:
            return None
        return self._digests(group, sequence, count)[count - 1]

    def _wanted(self, group: SequenceGroup, sequence: Sequence) -> list[bytes]:
        """Returns the digests of the blocks that may be shared; tokens that are scored must be computed."""
        count = (len(sequence) - 1) // self._block_size
        if group.max_cached_tokens is not None:
            count = min(count, group.max_cached_tokens // self._block_size)
        return self._digests(group, sequence, count)[:count]

    def _digests(self, group: SequenceGroup, sequence: Sequence, count: int) -> list[bytes]:
        """Returns the digests of at least `count` leading blocks, each computed once for a sequence."""
        digests, size = sequence.block_digests, self._block_size
        parent = digests[-1] if digests else _root(group, sequence)
        for start in range(len(digests) * size, count * size, size):
            parent = block_digest(parent, sequence.tokens(start, start + size))
            digests.append(parent)
        return digests


def _root(group: SequenceGroup, sequence: Sequence) -> bytes:
    """Returns the digest that a sequence's chain begins with, which covers a bidirectional context."""
    root = root_digest(None if group.adapter is None else group.adapter.digest)
    context = sequence.context
    return root if context is None else block_digest(root, sequence.tokens(0, context.length))
