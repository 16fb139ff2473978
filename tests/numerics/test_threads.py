"""Threads with the shipped model: MindSpore ends the process where two of them compile or run at once."""

import ctypes
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

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
