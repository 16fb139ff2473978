"""Batch jobs without MindSpore: the job's own code whole, over a shadow model that starts at once."""

from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import orjson
import pytest

from mindbatch.config.model_schema import DecodingConfig
from mindbatch.dataset.data_config import DataConfig
from mindbatch.decoding import DecodingParams
from mindbatch.engine.engine import StepResult
from mindbatch.engine.statistics import EngineStatistics
from mindbatch.io.closing import Closing
from mindbatch.io.storage import Storage
from mindbatch.llm import LLM
from mindbatch.prompts.prompts import Prompt
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.run.batch_config import BatchConfig, BatchOutputConfig
from mindbatch.run.job import BatchJob
from shadow_llm import load_tokenizer, make_llm

FIELDS = {"weights": "shadow", "tokenizer": "bytes"}


@lru_cache(maxsize=1)
def shared_tokenizer() -> Tokenizer:
    """One tokenizer for all jobs of a process: it is made by transformers, which takes its time."""
    return load_tokenizer(Path(mkdtemp()))


def job_config(
    data: Path | str,
    folder: Path,
    *,
    decoding: dict[str, Any] | None = None,
    output: dict[str, Any] | None = None,
    **options: Any,
) -> BatchConfig:
    """A configuration whose rows are short; keyword arguments are options of `data`."""
    return BatchConfig(
        data=DataConfig(path=str(data), **options),
        output=BatchOutputConfig(dir=str(folder), **(output or {})),
        decoding=DecodingConfig(**{"max_new_tokens": 4, **(decoding or {})}),
        progress="none",
    )


def make_job(
    config: BatchConfig,
    *,
    storage: Storage | None = None,
    batch_size: int = 4,
    load: Callable[[], LLM] | None = None,
    retry: bool = False,
    stdin: bytes | None = None,
) -> BatchJob:
    """A job over the shadow model, whose fingerprint has what a real one's has of the decoding."""
    return BatchJob(
        config,
        {
            **FIELDS,
            "data.template": config.data.template,
            **{f"decoding.{name}": value for name, value in vars(config.decoding).items()},
        },
        lambda folder: make_llm(shared_tokenizer(), batch_size=batch_size) if load is None else load(),
        shared_tokenizer,
        command=["mindbatch", "batch"],
        storage=storage or Storage(),
        retry=retry,
        stdin=None if stdin is None else BytesIO(stdin),
    )


def write_rows(path: Path, count: int) -> Path:
    """A JSONL file of short prompts with keys; prompts that share beginnings, and lengths that vary."""
    rows = [
        {"id": f"row-{number}", "prompt": f"Question {number % 7}: " + "why " * (number % 5)}
        for number in range(count)
    ]
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file."""
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


class Interrupting(Closing):
    """A generator that is interrupted after some steps, or fails with an error."""

    def __init__(self, llm: LLM, steps: int, error: BaseException | None = None) -> None:
        self._llm = llm
        self._steps = steps
        self._error = error or KeyboardInterrupt()
        self.is_closed = False

    def steps(self, rows: Iterable[tuple[Prompt, DecodingParams]]) -> Generator[StepResult, None, None]:
        for number, step in enumerate(self._llm.steps(rows)):
            yield step
            if number == self._steps:
                raise self._error

    @property
    def kernels(self) -> str:
        return self._llm.kernels

    def take_notes(self) -> list[str]:
        return self._llm.take_notes()

    @property
    def statistics(self) -> EngineStatistics:
        return self._llm.statistics

    def close(self) -> None:
        self._llm.close()
        self.is_closed = True


def interrupted(config: BatchConfig, steps: int, **options: Any) -> None:
    def load() -> Any:
        return Interrupting(make_llm(shared_tokenizer(), batch_size=2), steps)

    with pytest.raises(KeyboardInterrupt):
        make_job(config, load=load, **options).run()


def never() -> LLM:
    raise AssertionError("nothing is left to run")


def results(folder: Path) -> bytes:
    return (folder / "results.jsonl").read_bytes()
