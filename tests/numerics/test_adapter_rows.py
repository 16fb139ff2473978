"""Rows that name adapters: each gets what it gets alone, in batches, in runs that end early, in processes."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from mindbatch import LLM
from mindbatch.config.compose import compose_task
from mindbatch.engine.request import RequestOutput
from mindbatch.io.errors import CheckpointError, ConfigError, PromptError
from mindbatch.run.batch_config import BatchTaskConfig
from mindbatch.tasks.batch import job_of
from mindbatch.tasks.registry import TASKS
from peft_folders import TINY, write_adapter

RANKS = {"one": 1, "four": 4, "sixteen": 16, "sixty": 60}
NAMES = [*RANKS, "base", None]
PROMPT = "An increasing sequence: one,"
OTHER = "An increasing sequence: one, two, three, four, five, six, seven"
KINDS = [
    {},
    pytest.param({"do_sample": True, "seed": 5, "num_return_sequences": 2}, marks=pytest.mark.slow),
    {"num_beams": 2},
    pytest.param({"prompt_lookup_num_tokens": 3}, marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path | None]:
    home = tmp_path_factory.mktemp("adapters")
    made = {name: write_adapter(home / name, rank, rank) for name, rank in RANKS.items()}
    return {**made, "base": None}


@pytest.fixture(scope="module")
def llm(adapters: dict[str, Path | None]) -> Iterator[LLM]:
    """As many slots as half of the adapters need."""
    with LLM(TINY, lora_adapters=adapters, lora_max_loaded=2, batch_size=8, cache_memory="16MiB") as made:
        yield made


def tokens_of(output: RequestOutput) -> list[list[int]]:
    return [each.token_ids for each in output.outputs]


def alone(llm: LLM, adapter: str | None, prompt: str, **params: Any) -> list[list[int]]:
    [output] = llm.generate(prompt, adapter=adapter, max_new_tokens=8, **params)
    return tokens_of(output)


@pytest.mark.parametrize("kind", KINDS, ids=["greedy", "samples", "beams", "lookup"])
def test_each_row_gets_what_it_gets_alone(llm: LLM, kind: dict[str, Any]) -> None:
    if kind.get("do_sample"):  # a row's random numbers are those of its place
        kind = kind | {"temperature": 1e-4}
    names = NAMES * 2
    prompts = [PROMPT] * len(NAMES) + [OTHER] * len(NAMES)
    outputs = llm.generate(prompts, adapter=names, max_new_tokens=8, **kind)
    assert [output.adapter for output in outputs] == names
    found = [tokens_of(output) for output in outputs]
    assert found == [alone(llm, *row, **kind) for row in zip(names, prompts, strict=True)]
    assert len({str(each) for each in found[: len(NAMES)]}) == len(NAMES) - 1  # base twice


def test_one_adapter_for_all_and_bad_ones(llm: LLM) -> None:
    one, other = llm.generate([PROMPT, PROMPT], adapter="four", max_new_tokens=4)
    assert tokens_of(one) == tokens_of(other)
    streamed = [event.token_ids for event in llm.stream(PROMPT, adapter="four", max_new_tokens=4)]
    assert [token for tokens in streamed for token in tokens] == one.outputs[0].token_ids
    with pytest.raises(PromptError, match=r"there is no adapter 'fuor'; .*; did you mean four\?"):
        llm.generate(PROMPT, adapter="fuor")
    with pytest.raises(ConfigError, match="adapter: 1 given for 2 prompts"):
        llm.generate([PROMPT, PROMPT], adapter=["four"])
    with pytest.raises(ConfigError, match="adapter=4: must be the name of an adapter"):
        llm.generate(PROMPT, adapter=4)  # type: ignore[arg-type]


def rows_file(folder: Path, names: list[str | None]) -> Path:
    path = folder / "rows.jsonl"
    rows = [
        {"prompt": OTHER[: 40 + 2 * place], **({"who": name} if name else {})}
        for place, name in enumerate(names)
    ]
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def config_of(folder: Path, adapters: dict[str, Path | None], run: str, *more: str) -> BatchTaskConfig:
    written = orjson.dumps({name: path and str(path) for name, path in adapters.items()}).decode()
    overrides = [
        "model=tiny_gpt2",
        "model.batch_size=4",
        "runtime.cache_memory=16MiB",
        f"lora.adapters={written}",
        "lora.default=one",
        "lora.max_loaded=2",
        f"data.path={folder / 'rows.jsonl'}",
        "data.adapter_column=who",
        "decoding.max_new_tokens=6",
        "progress=none",
        f"output.dir={folder / run}",
        *more,
    ]
    config = compose_task(TASKS["batch"], overrides).finish()
    assert isinstance(config, BatchTaskConfig)
    return config


def results(folder: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in (folder / "results.jsonl").read_bytes().splitlines()]


class Ending:
    """A generator that is interrupted after a few steps."""

    def __init__(self, llm: LLM, steps: int) -> None:
        self.llm, self.left = llm, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self.llm, name)

    def steps(self, rows: Any) -> Any:
        for result in self.llm.steps(rows):
            yield result
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


@pytest.mark.slow
def test_a_run_that_ends_early_resumes_and_refuses_a_changed_adapter(
    tmp_path: Path, adapters: dict[str, Path | None]
) -> None:
    own = {name: path and Path(shutil.copytree(path, tmp_path / name)) for name, path in adapters.items()}
    rows_file(tmp_path, [*NAMES, "six", *NAMES])
    job_of(config_of(tmp_path, own, "whole")).run()

    broken = job_of(config_of(tmp_path, own, "broken"))
    load = broken.load

    @contextmanager
    def ending(folder: Any) -> Iterator[Any]:
        with load(folder) as llm:
            yield Ending(cast(LLM, llm), 9)

    broken.load = ending
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    assert not (tmp_path / "broken/results.jsonl").exists()
    job_of(config_of(tmp_path, own, "broken")).run()
    whole, again = ((tmp_path / run / "results.jsonl").read_bytes() for run in ("whole", "broken"))
    assert whole == again
    found = results(tmp_path / "whole")
    assert [row["adapter"] for row in found] == [name or "one" for name in NAMES * 2]
    [error] = (tmp_path / "whole/errors.jsonl").read_bytes().splitlines()
    assert orjson.loads(error)["reason"] == (
        "who: there is no adapter 'six'; lora.adapters has one, four, sixteen, sixty, base"
        "; did you mean sixty?"
    )
    digests = orjson.loads((tmp_path / "whole/manifest.json").read_bytes())["digests"]
    assert {name for name in digests if name.startswith("lora")} == {f"lora.adapters.{name}" for name in own}

    shutil.rmtree(tmp_path / "four")
    write_adapter(tmp_path / "four", 4, seed=99)
    with pytest.raises(ConfigError, match=r"run with other settings: lora.adapters.four sha256:\w+.* -> "):
        job_of(config_of(tmp_path, own, "whole")).run()


def test_all_faults_of_adapters_are_told_before_anything_is_loaded(
    tmp_path: Path, adapters: dict[str, Path | None]
) -> None:
    folders = {name: Path(shutil.copytree(adapters["four"] or "", tmp_path / name)) for name in "ab"}
    (folders["a"] / "adapter_model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    (folders["b"] / "adapter_config.json").unlink()
    with pytest.raises(CheckpointError) as caught:
        LLM(TINY, lora_adapters=folders)
    first, *rest = caught.value.lines
    assert first.startswith("lora.adapters.a: ")
    assert rest
    assert all(fault.startswith("lora.adapters.b: ") for fault in rest)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("ranks", [{"data_parallel": 2}, {"model_parallel": 2}, {"pipeline_stage": 3}])
def test_ranks_give_each_row_the_same(
    llm: LLM, adapters: dict[str, Path | None], ranks: dict[str, int]
) -> None:
    options: dict[str, Any] = {"lora_adapters": adapters, "lora_max_loaded": 2, "cache_memory": "16MiB"}
    prompts, names = [PROMPT, OTHER] * len(NAMES), NAMES * 2
    with LLM(TINY, **options, **ranks, batch_size=3) as made:
        outputs = made.generate(prompts, adapter=names, max_new_tokens=6)
        with pytest.raises(PromptError, match="there is no adapter 'six'"):
            made.generate(PROMPT, adapter="six")
    expected = llm.generate(prompts, adapter=names, max_new_tokens=6)
    assert [output.adapter for output in outputs] == names
    assert [tokens_of(output) for output in outputs] == [tokens_of(output) for output in expected]
