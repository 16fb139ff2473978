"""One program's process: the device in use, threads, Ctrl+C, and memory that comes back."""

import ctypes
import gc
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mindbatch import LLM, DecodingParams

INTERRUPTED = """
import asyncio, os, signal, threading
from mindbatch import AsyncLLM

async def main():
    async with AsyncLLM("shipped:examples/tiny_gpt2") as llm:
        async for event in llm.stream("9 + 8 =", max_new_tokens=100, eos_token_id=()):
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""

MODEL = "shipped:examples/tiny_gpt2"
CALLS = [["9 + 8 =", "three plus four is"], ["An increasing sequence: one,"], ["one", "two", "three"]] * 3
SAMPLED = DecodingParams(max_new_tokens=12, do_sample=True)


def sigint_action() -> bytes:
    action = ctypes.create_string_buffer(512)
    ctypes.CDLL(None).sigaction(signal.SIGINT, None, action)
    return action.raw[:16]


def tokens_of(llm: LLM, prompts: list[str]) -> list[list[int]]:
    return [result.outputs[0].token_ids for result in llm.generate(prompts, SAMPLED)]


@pytest.mark.slow
def test_threads_get_what_they_would_get_alone_and_leave_ctrl_c_to_the_program() -> None:
    llm, before = LLM(MODEL, batch_size=4, max_batched_tokens=16), sigint_action()

    def with_a_model_of_its_own() -> list[list[int]]:
        return tokens_of(LLM(MODEL, batch_size=2), CALLS[0])

    with ThreadPoolExecutor(8) as pool:
        loading = pool.submit(with_a_model_of_its_own)
        together = list(pool.map(lambda prompts: tokens_of(llm, prompts), CALLS))
    assert sigint_action() == before
    assert together == [tokens_of(llm, prompts) for prompts in CALLS]
    assert loading.result() == together[0]


@pytest.mark.slow
def test_ctrl_c_reaches_the_event_loop_while_the_engines_thread_computes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        timeout=120,
        # Tests that run in a shell's background inherit an ignored SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n")


PROGRAM = """
import numpy, mindspore
from mindbatch.io.errors import ConfigError
from mindbatch.parallel.context import initialise

assert (mindspore.Tensor(numpy.ones(2, numpy.float32)) + 1).asnumpy().sum() == 4
initialise("CPU")
try:
    initialise("Ascend")
except ConfigError as error:
    print(error)
"""


@pytest.mark.slow
def test_the_device_in_use_is_taken_and_another_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("runtime.device_target=Ascend: not available here; runtime=cpu runs ")


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
