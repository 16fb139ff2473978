"""The limits of an engine, and the number of cache blocks that a memory budget allows."""

from dataclasses import dataclass

from mindbatch.architecture.architecture import BlockPositions2D
from mindbatch.io.errors import ConfigError


@dataclass(frozen=True)
class EngineSettings:
    """Sizes of one engine.

    batch_size: maximum number of sequences that generate together; a request with more samples runs alone.
    seq_length: maximum number of tokens of prompt and output together.
    max_positions: number of positions that the model has; None if unknown.
    block_size: number of tokens of a cache block.
    num_blocks: number of blocks of the cache.
    max_batched_tokens: maximum number of tokens of a step; longer prompts are computed in chunks.
    max_prompt_tokens: maximum number of prompt tokens of a step in which sequences generate.
    use_past: keeps keys and values between steps; False recomputes every sequence at every step.
    decoder_start_id: the token that every output begins with, in a model whose prompts are its encoder's
        input; prompts are then not divided into chunks. None for other models.
    two_positions: the mask and start tokens of a model whose prompts have a context, which is not divided
        into chunks. None for other models.
    num_states: number of slots for recurrent states; 0 for a model without recurrent layers.
    prefix_caching: computes a prefix that requests share once; has no effect without use_past.
    placeholders: ids and names of tokens for an image, sound or video, which no prompt may have.
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
        """True if the model keeps a state of each sequence."""
        return self.num_states > 0

    @property
    def blocks_per_sequence(self) -> int:
        """Width of a block table: the blocks of seq_length tokens, or all blocks if they are fewer."""
        return min(self.blocks_for(self.seq_length), self.num_blocks)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def fitting_sequences(self, tokens: int) -> int:
        """Returns the number of sequences of that length that the cache holds at once."""
        fitting = self.num_blocks // max(1, self.blocks_for(tokens))
        return min(fitting, self.num_states) if self.is_recurrent else fitting


def affordable_states(cache_bytes: int, state_bytes: int, wanted: int, engines: int = 1) -> int:
    """Returns the number of state slots of each of the engines that share a budget; they take at most half.

    state_bytes: size of the state of a sequence; 0 for a model without recurrent layers.

    Raises:
        ConfigError: the budget is too small for a state of each engine.
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
    """Returns the number of blocks of each of the engines that share a budget, less one block for padding.

    Raises:
        ConfigError: the budget is too small for a block of each engine.
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
