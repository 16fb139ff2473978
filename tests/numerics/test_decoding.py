"""Every strategy with every processor decodes what transformers does, token for token, all in one batch."""

import json
import lzma
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import recording
from model_folders import STORIES, descriptions, write_folder

from mindbatch import LLM, DecodingParams
from mindbatch.engine.request import RequestOutput
from mindbatch.prompts.prompts import Prompt

FIXTURES = Path(__file__).parent / "fixtures"
SETS = ("main", "group_beam", "contrastive")
_UNNAMED = {"max_new_tokens", "eos_token_id", "num_return_sequences"}


@dataclass(frozen=True)
class Case:
    """A prompt with its parameters, named as DecodingParams names them, and what must come out.

    outputs: token ids of each returned sequence, an end token included.
    scores: of each; None where nothing is ranked.
    any_end: the last tokens may be other end tokens than these.
    """

    name: str
    model: str
    kind: str
    prompt: list[int]
    params: dict[str, Any]
    outputs: list[list[int]]
    scores: list[float] | None
    any_end: bool

    def comparable(self, tokens: list[int]) -> list[int]:
        """The tokens, with one end token for all where it may be any."""
        ends = self.params.get("eos_token_id", []) if self.any_end else []
        return [*tokens[:-1], ends[0]] if tokens and tokens[-1] in ends else tokens


@lru_cache(maxsize=1)
def decoding_cases() -> tuple[Case, ...]:
    """All cases; each name tells the model, a number and the parameters."""
    found = []
    for name in SETS:
        content = json.loads(lzma.decompress((FIXTURES / f"decoding_{name}.json.xz").read_bytes()))
        found += [_case(len(found) + place, **case) for place, case in enumerate(content["cases"])]
    return tuple(found)


def _case(
    number: int,
    *,
    model: str,
    kind: str,
    params: dict[str, Any],
    gap: float,
    any_end: bool = False,
    **given: Any,
) -> Case:
    shown = [
        name if isinstance(value, list) else f"{name}={value}"
        for name, value in params.items()
        if name not in _UNNAMED
    ]
    name = "-".join([model, str(number), kind, *shown])
    return Case(name=name, model=model, kind=kind, params=params, any_end=any_end, **given)


CASES = {case.name: case for case in decoding_cases()}
LOOKED_UP = [case.name for case in CASES.values() if case.kind == "greedy"]
# The same parameters with other logits: another random model and a trained one.
OTHER_LOGITS = [pytest.mark.slow, pytest.mark.on_demand]
MARKS = {"llama3": OTHER_LOGITS, "stories260K": OTHER_LOGITS}


def marked(names: Iterable[str]) -> list[Any]:
    """Names of cases, with the marks of their models."""
    return [pytest.param(name, marks=MARKS.get(CASES[name].model, ())) for name in names]


@lru_cache(maxsize=3)
def load(name: str) -> LLM:
    """The model, in an engine that mixes many rows and takes prompts in pieces."""
    options: dict[str, Any] = {"batch_size": 48, "max_batched_tokens": 64, "cache_memory": "32MiB"}
    if name == "stories260K":
        return recording.load(STORIES, first_buckets=(8,), **options)
    with TemporaryDirectory() as folder:
        write_folder(Path(folder), descriptions()[name])
        return recording.load(Path(folder), first_buckets=(8,), **options)


def run(llm: LLM, rows: Iterable[tuple[str, list[int], dict[str, Any]]]) -> dict[str, RequestOutput]:
    """Runs rows of a key, a prompt and parameters in one batch; the results by key."""
    prompts = [
        (Prompt(key=key, source=key, token_ids=prompt), DecodingParams(**params))
        for key, prompt, params in rows
    ]
    run = llm.submit(prompts)
    found = [*run.refused, *(item for item in run if isinstance(item, RequestOutput))]
    return {output.key: output for output in found}


@lru_cache(maxsize=3)
def results(name: str) -> dict[str, RequestOutput]:
    """All cases of a model, and the greedy ones once more with prompt lookup, in one batch."""
    rows = []
    for case in CASES.values():
        if case.model == name:
            rows.append((case.name, case.prompt, case.params))
            if case.kind == "greedy":
                rows.append(
                    (f"{case.name}-lookup", case.prompt, case.params | {"prompt_lookup_num_tokens": 3})
                )
    return run(load(name), rows)


def result(case: Case, suffix: str = "") -> RequestOutput:
    if case.model == "stories260K" and not (STORIES / "model.safetensors").exists():
        pytest.skip(f"needs the model in {STORIES}, which is not shipped")
    return results(case.model)[case.name + suffix]


@pytest.mark.parametrize("name", marked(CASES))
def test_tokens_and_scores_are_those_of_transformers(name: str) -> None:
    case = CASES[name]
    found = result(case)
    assert found.error is None
    tokens = [case.comparable(output.token_ids) for output in found.outputs]
    assert tokens == [case.comparable(expected) for expected in case.outputs]
    if case.scores is not None:
        assert [output.rank for output in found.outputs] == list(range(1, 1 + len(case.scores)))
        assert [output.score for output in found.outputs] == pytest.approx(case.scores, abs=1e-4, rel=1e-5)


@pytest.mark.parametrize("name", marked(LOOKED_UP))
def test_prompt_lookup_changes_no_token(name: str) -> None:
    found = result(CASES[name], "-lookup")
    assert [output.token_ids for output in found.outputs] == CASES[name].outputs


def test_prompt_lookup_accepts_tokens() -> None:
    found = [
        result(case, "-lookup") for case in CASES.values() if case.name in LOOKED_UP and case.model == "gpt2"
    ]
    assert sum(output.num_accepted_tokens for each in found for output in each.outputs) > 100
