"""An LLM without MindSpore: a real engine and tokenizer, and logits that are a fingerprint of the prefix."""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from small_tokenizers import CHATML, byte_level, write_folder

from mindbatch.engine.engine import Engine
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import Step, StepOutput
from mindbatch.llm import LLM
from mindbatch.loading.build import LoadedEngine
from mindbatch.prompts.token_bytes import IncrementalDetokenizer
from mindbatch.prompts.tokenizer import Tokenizer

VOCABULARY = 340
END = 2  # <|im_end|>


class PrefixLogits(StepOutput):
    """The answer to one step."""

    def __init__(self, prefixes: list[list[int]]) -> None:
        self.prefixes = prefixes

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        return np.stack([logits_after(self.prefixes[token]) for token in tokens])

    def hidden(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        return self.logits(tokens)[:, :8]


class PrefixRunner:
    """Needs no cache: it reads each token's prefix off its sequence."""

    vocab_size = VOCABULARY

    def run(self, step: Step) -> PrefixLogits:
        return PrefixLogits(
            [
                tokens.sequence.tokens(0, place + 1)
                for tokens in step.scheduled
                for place in range(tokens.start, tokens.stop)
            ]
        )


def logits_after(prefix: list[int]) -> NDArray[np.float32]:
    seed = int.from_bytes(blake2b(repr(prefix).encode(), digest_size=8).digest(), "little")
    return np.random.default_rng(seed).standard_normal(VOCABULARY).astype(np.float32) * 2


def greedy_tokens(prompt: list[int], count: int) -> list[int]:
    """What greedy decoding gives, without an engine."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits_after(tokens).argmax()))
    return tokens[len(prompt) :]


def load_tokenizer(folder: Path, **config: Any) -> Tokenizer:
    """A byte-level tokenizer with a chat template."""
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHATML, **config}
    tokenizer = Tokenizer.load(write_folder(folder, byte_level(), settings))
    assert tokenizer is not None
    return tokenizer


def make_engine(tokenizer: Tokenizer | None, seq_length: int = 200, batch_size: int = 4) -> Engine:
    """An engine over the shadow model."""
    settings = EngineSettings(batch_size=batch_size, seq_length=seq_length, block_size=16, num_blocks=100)
    make = None
    if tokenizer is not None:

        def make(prompt: tuple[int, ...], skip_special: bool) -> IncrementalDetokenizer:
            return IncrementalDetokenizer(tokenizer, prompt, skip_special)

    return Engine(PrefixRunner(), settings, make, (END,))


def make_llm(tokenizer: Tokenizer | None, seq_length: int = 200, batch_size: int = 4) -> LLM:
    """An LLM over it; prompts are token ids where there is no tokenizer."""
    engine = make_engine(tokenizer, seq_length, batch_size)
    return LLM.over(LoadedEngine(engine, tokenizer, 0, kernels="shadow"))
