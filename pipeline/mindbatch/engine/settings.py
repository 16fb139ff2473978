"""The limits that the engine works within, and how many cache blocks a memory budget buys."""

from dataclasses import dataclass

from mindbatch.architecture.architecture import BlockPositions2D
from mindbatch.io.errors import ConfigError


@dataclass(frozen=True)
class EngineSettings:
    """Sizes of one engine.

    batch_size: most sequences that generate together; a request with more samples than that runs alone.
    seq_length: most tokens of prompt and output together. max_positions: how many the model could have; None
        where that is not known.
    block_size: tokens per cache block.
    num_blocks: blocks of the cache.
    max_batched_tokens: most tokens of one step; longer prompts are taken in chunks.
    max_prompt_tokens: most tokens of one step besides those of sequences that are generating.
    use_past: keep keys and values between steps; False recomputes every sequence at every step.
    decoder_start_id: of a model whose prompts are its encoder's input, which is never taken in chunks: the
        token that every output begins with. None of others.
    two_positions: of a model whose prompts have a context, which is never taken in chunks. None of others.
    num_states: slots for states of sequences; 0 of a model without recurrent layers.
    prefix_caching: compute a beginning that requests share once; has no effect without use_past.
    placeholders: ids of tokens that stand for an image, sound or video, which no prompt may have, with names.
    """

    batch_size: int
    seq_length: int
    block_size: int
    num_blocks: int
    max_batched_tokens: int = 512
    use_past: bool = True
    prefix_caching: bool = True
    max_positions: int | None = None
    max_prompt_tokens: int | None = None
    decoder_start_id: int | None = None
    two_positions: BlockPositions2D | None = None
    num_states: int = 0
    placeholders: tuple[tuple[int, str], ...] = ()

    @property
    def is_recurrent(self) -> bool:
        """True of a model that keeps a state of each sequence."""
        return self.num_states > 0

    @property
    def blocks_per_sequence(self) -> int:
        """Width of a block table: the blocks of seq_length tokens, but no more than there are."""
        return min(self.blocks_for(self.seq_length), self.num_blocks)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def fitting_sequences(self, tokens: int) -> int:
        """Sequences of so many tokens that the cache holds at once."""
        fitting = self.num_blocks // max(1, self.blocks_for(tokens))
        return min(fitting, self.num_states) if self.is_recurrent else fitting


def affordable_states(cache_bytes: int, state_bytes: int, wanted: int, engines: int = 1) -> int:
    """Slots for states of sequences that each of the engines which share a budget gets: half of it at most.

    state_bytes: of a sequence; 0 of a model without recurrent layers, which has no slots.

    Raises:
        ConfigError: the budget holds no state of each engine beside keys and values.
    """
    if not state_bytes:
        return 0
    states = min(wanted, cache_bytes // 2 // state_bytes // engines)
    if states < 1:
        raise ConfigError(
            f"runtime.cache_memory={cache_bytes} bytes: too small; a sequence's state takes {state_bytes} "
            f"bytes, and half of the cache is for states; the least is {2 * engines * state_bytes}"
        )
    return states


def affordable_blocks(cache_bytes: int, bytes_per_token: int, block_size: int, engines: int = 1) -> int:
    """Blocks that each of the engines which share a budget gets; one more, for padding, is paid from it too.

    Raises:
        ConfigError: the budget holds less than one usable block.
    """
    block_bytes = bytes_per_token * block_size
    blocks = (cache_bytes // block_bytes - 1) // engines
    if blocks < 1:
        least = "two" if engines == 1 else f"{engines + 1}, one for each pipeline stage and one for padding,"
        raise ConfigError(
            f"runtime.cache_memory={cache_bytes} bytes: too small; a block of {block_size} tokens takes "
            f"{block_bytes} bytes and {least} are the least"
        )
    return blocks
