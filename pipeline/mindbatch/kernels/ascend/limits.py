"""Limits of Ascend's attention operators beyond what MindSpore checks when it compiles.

Sources: CANN 8.5, Ascend Transformer Boost, PagedAttention, constraints (page ascendtb_01_0198 of its API
reference); for FlashAttentionScore the docstring of MindSpore 2.9's operator.
"""

from collections.abc import Iterator

from mindbatch.kernels.memory import FLOAT16, FLOAT32, FloatType

BLOCK_MULTIPLE = 16  # block_size % 16 == 0
LARGEST_BLOCK = 128  # where a sequence has several queries (parallel decoding, chunks of prompts)
LARGEST_HEAD = 256  # head_size in (0, 256]
LARGEST_BLOCK_OF_HEAD = 128 * 128  # block_size * head_size
FLASH_HEAD_MULTIPLE = 16  # of FlashAttentionScore's D
LARGEST_FLASH_HEADS = 256  # its N1
GATHERED_BYTES = 2 << 30
"""Most memory of keys and values that are gathered for the tokens of a step, in float32."""
ALIBI_NUMBERS = 16
"""Numbers more that a head has with ALiBi: see `mindbatch.kernels.ascend.attention`."""


def needs_gathering(head_dim: int, *, is_rounded: bool, has_softcap: bool, has_sinks: bool = False) -> bool:
    """True if plain operators compute attention, since the fused ones do not.

    is_rounded: of ALiBi. has_softcap: scores are capped. has_sinks: see `AttentionShape`.
    """
    return head_dim > LARGEST_HEAD or is_rounded or has_softcap or has_sinks


def most_gathered_tokens(seq_length: int, numbers: int) -> int:
    """Tokens of a step whose keys and values are gathered for each; 0 where they are too many for one.

    seq_length: tokens of the longest sequence. numbers: of a token's keys and values in a layer.
    """
    return GATHERED_BYTES // (seq_length * numbers * FLOAT32.itemsize)


def limit_faults(
    head_dim: int,
    block_size: int,
    *,
    is_gathered: bool = False,
) -> Iterator[str]:
    """Yields reasons why the operators do not take these sizes, in the configuration's words.

    head_dim: numbers of a head in the cache. is_gathered: see `needs_gathering`.
    """
    where = "not with runtime.device_target=Ascend, whose PagedAttention"
    if block_size % BLOCK_MULTIPLE or block_size > LARGEST_BLOCK:
        yield (
            f"runtime.block_size={block_size}: {where} takes multiples of {BLOCK_MULTIPLE} up to "
            f"{LARGEST_BLOCK}"
        )
    if not is_gathered:
        yield from _head_faults(head_dim, block_size, where)


def _head_faults(head_dim: int, block_size: int, where: str) -> Iterator[str]:
    if head_dim > LARGEST_HEAD:
        yield (
            f"heads of {head_dim} numbers: {where} takes at most {LARGEST_HEAD}; allowed: CPU for this model"
        )
    elif block_size * head_dim > LARGEST_BLOCK_OF_HEAD:
        yield (
            f"runtime.block_size={block_size}: {where} takes at most {LARGEST_BLOCK_OF_HEAD} numbers of one "
            f"head in a block; allowed with heads of {head_dim}: at most {LARGEST_BLOCK_OF_HEAD // head_dim}"
        )


def flash_is_legal(heads: int, head_dim: int, float_type: FloatType) -> bool:
    """True if FlashAttentionScore computes whole prompts; elsewhere PagedAttention does, from the cache.

    Not in float16: MindSpore refuses masks of that type when it compiles ("Attn mask don't support float16").
    """
    if float_type == FLOAT16:
        return False
    return head_dim % FLASH_HEAD_MULTIPLE == 0 and head_dim <= LARGEST_HEAD and heads <= LARGEST_FLASH_HEADS
