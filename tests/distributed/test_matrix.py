"""Every shape of a job gives the tokens of one process: replicas, slices and stages of three models."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from model_folders import descriptions, write_folder

from mindbatch import LLM
from mindbatch.kernels.choice import kernels_in_use
from mixed_requests import PLAIN, SCHEMA, STORIES, TINY

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.on_demand]

SHAPES = [(1, 2, 1), (2, 1, 1), (2, 2, 1), (1, 1, 2), (1, 2, 2), (1, 4, 1)]
OPTIONS: dict[str, Any] = {"batch_size": 4, "block_size": 8, "cache_memory": "2MB"}
ROUNDED: tuple[dict[str, Any], ...] = ({"dtype": "bfloat16"}, {"quantization": "int8"})
WAYS = {way: PLAIN[way] for way in ("greedy", "sampled", "samples", "beams")} | {
    "schema": {"json_schema": SCHEMA},
    "allowed": {"bad_words_ids": [[5], [7, 8]], "suppress_tokens": [9, 10]},
}


@pytest.fixture(scope="module", params=["tiny_gpt2", "llama3", "stories260K"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped model; a random Llama of 4 heads, 2 of keys and values; a trained one."""
    if request.param == "tiny_gpt2":
        return TINY
    if request.param == "stories260K":
        if not STORIES.exists():
            pytest.skip(f"needs the model in {STORIES}, which is not shipped")
        return STORIES
    made = tmp_path_factory.mktemp("model") / "llama3"
    write_folder(made, descriptions()["llama3"])
    return made


@pytest.fixture(scope="module")
def expected(folder: Path) -> Iterator[dict[str, Any]]:
    with LLM(folder, **OPTIONS) as llm:
        yield answers(llm)


def answers(llm: LLM) -> dict[str, Any]:
    """Token ids of every output, by way."""
    has_texts = llm.tokenizer is not None
    size = 100
    prompts = [[(3 * place + row) % size for place in range(5 * row + 2)] for row in range(7)]
    found = {}
    for way, params in WAYS.items():
        if has_texts or way != "schema":
            results = llm.generate(prompts, max_new_tokens=18, eos_token_id=[], **params)
            assert not any(result.error for result in results)
            found[way] = [[output.token_ids for output in result.outputs] for result in results]
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_tokens_are_those_of_one_process(
    folder: Path, expected: dict[str, Any], shape: tuple[int, int, int]
) -> None:
    names = ("data_parallel", "model_parallel", "pipeline_stage")
    with ExitStack() as stack:
        llm = stack.enter_context(LLM(folder, **OPTIONS, **dict(zip(names, shape, strict=True))))
        assert answers(llm) == expected
        assert llm.kernels == kernels_in_use("auto", "CPU")


@pytest.mark.parametrize("shape", [(2, 1, 1), (1, 1, 2)], ids=str)
@pytest.mark.parametrize("kind", ROUNDED, ids=lambda kind: next(iter(kind.values())))
def test_copies_and_stages_round_as_one_process(shape: tuple[int, int, int], kind: dict[str, Any]) -> None:
    data_parallel, _, pipeline_stage = shape
    with LLM(TINY, **OPTIONS, **kind) as llm:
        one = answers(llm)
    with LLM(TINY, **OPTIONS, **kind, data_parallel=data_parallel, pipeline_stage=pipeline_stage) as llm:
        assert answers(llm) == one


@pytest.mark.parametrize("kind", ROUNDED, ids=lambda kind: next(iter(kind.values())))
def test_slices_round_alike_in_any_batch(kind: dict[str, Any]) -> None:
    """Each slice rounds its own part, so that two give other tokens than one; the batch changes nothing."""
    with LLM(TINY, **OPTIONS, **kind, model_parallel=2) as llm:
        together = answers(llm)
    with LLM(TINY, **(OPTIONS | {"batch_size": 1}), **kind, model_parallel=2) as llm:
        assert answers(llm) == together
