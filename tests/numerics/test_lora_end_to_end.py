"""Rows with adapters of different ranks get the same tokens alone, in batches, merged, and from PEFT."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lora_cases import base_logits, live_logits, prefixes, prompts, write_base, write_case
from recording import load

from mindbatch import LLM, DecodingParams
from mindbatch.engine.engine import Engine
from mindbatch.engine.request import Request

CASES = ("llama_classic", "llama_all_linear", "llama_patterns", "llama_rank_256")
NAMES = (*CASES, None)
ROWS = [(name, tuple(prompt)) for prompt in prompts() for name in NAMES]
GREEDY = DecodingParams(max_new_tokens=5)
Tokens = list[list[int]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("lora")
    write_base(home / "base", "llama")
    for case in CASES:
        write_case(home / case, case)
    return home


@pytest.fixture(scope="module")
def llm(home: Path) -> Iterator[LLM]:
    """Fewer slots than adapters."""
    adapters = {case: home / case for case in CASES}
    with load(home / "base", first_buckets=(), lora_adapters=adapters, lora_max_loaded=2) as made:
        yield made


@pytest.fixture(scope="module")
def alone(llm: LLM) -> Tokens:
    return [tokens_of(llm, [row], 1)[0] for row in ROWS]


def tokens_of(llm: LLM, rows: list[tuple[str | None, tuple[int, ...]]], batch_size: int) -> Tokens:
    """Of each row, by an engine that takes so many at a time over the model that is loaded."""
    loaded = llm._model.engine
    assert isinstance(loaded, Engine)
    settings = replace(loaded.settings, batch_size=batch_size)
    slots = loaded.scheduler.adapters
    engine = Engine(loaded._runner, settings, adapters=loaded._adapters, slots=slots)
    for number, (name, prompt) in enumerate(rows):
        engine.add(Request(str(number), prompt, GREEDY, adapter=name))
    done = {}
    while engine.has_work:
        done |= {output.key: output.outputs[0].token_ids for output in engine.step().finished}
    return [done[str(number)] for number in range(len(rows))]


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_rows_get_what_they_get_alone_at_any_batch_size(llm: LLM, alone: Tokens, batch_size: int) -> None:
    assert tokens_of(llm, ROWS, batch_size) == alone
    assert len({str(tokens) for tokens in alone[: len(NAMES)]}) > 3, "the adapters must be seen to act"


@pytest.mark.slow
def test_tokens_are_peft_s(alone: Tokens) -> None:
    """The first token of each row, whose logits are recorded: of PEFT over transformers."""
    for (name, prompt), tokens in zip(ROWS, alone, strict=True):
        logits = base_logits("llama") if name is None else live_logits(name)
        assert tokens[0] == int(np.argmax(logits[prefixes().index(prompt)])), (name, prompt)


@pytest.mark.slow
def test_tokens_are_those_of_the_merged_model(home: Path, alone: Tokens) -> None:
    adapters = {"llama_all_linear": home / "llama_all_linear"}
    with load(home / "base", first_buckets=(), lora_adapters=adapters, lora_mode="merge") as merged:
        rows = [row for row in ROWS if row[0] == "llama_all_linear"]
        expected = [tokens for row, tokens in zip(ROWS, alone, strict=True) if row in rows]
        assert tokens_of(merged, rows, 3) == expected
