"""A model that is closed gives its cache and weights back, so that a program can load one after another."""

import gc
from pathlib import Path

import pytest

from mindbatch import LLM

MIB = 1 << 20
CACHE = 512 * MIB


def address_space() -> int:
    """Bytes of this process; a cache counts at once, its pages come when they are first written."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if "VmSize" in line]
    return int(line.split()[1]) << 10


@pytest.mark.slow
def test_a_closed_model_gives_its_memory_back() -> None:
    sizes = []
    for _ in range(3):
        with LLM("shipped:examples/tiny_gpt2", cache_memory=CACHE) as llm:
            llm.generate("An increasing sequence: one,", max_new_tokens=2)
        del llm
        gc.collect()
        sizes.append(address_space())
    assert sizes[2] - sizes[0] < CACHE // 2
