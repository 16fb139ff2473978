"""Configurations of `mindbatch evaluate` over a model without a network."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import pytest

from mindbatch.config.model_schema import DecodingConfig
from mindbatch.llm import LLM
from mindbatch.tasks.evaluate.schema import EvaluateConfig
from shadow_llm import make_llm
from stub_job import FIELDS, shared_tokenizer

Configured = Callable[..., EvaluateConfig]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Six sums, of which the second group has its choices the other way round."""
    path = tmp_path / "sums.jsonl"
    lines = [
        {
            "prompt": f"{number} and {number} is",
            "reference": str(2 * number),
            "options": [str(2 * number), "99"] if number < 3 else ["99", str(2 * number)],
            "answer": 0 if number < 3 else "B",
            "group": number // 2,
        }
        for number in range(6)
    ]
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return path


@pytest.fixture
def configured(tmp_path: Path, rows: Path) -> Configured:
    """Makes a configuration; keywords are keys of `task`, or `metrics`, `data` and `decodings`.

    asked: rows in place of the sums.
    """

    def make(
        metrics: tuple[str, ...] = ("exact_match",),
        decodings: tuple[str, ...] = ("greedy",),
        data: dict[str, Any] | None = None,
        asked: Sequence[Mapping[str, object]] | None = None,
        **task: Any,
    ) -> EvaluateConfig:
        config = EvaluateConfig(metrics=metrics)
        config.data.path = str(rows)
        if asked is not None:
            config.data.path = str(tmp_path / "asked.jsonl")
            Path(config.data.path).write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in asked))
        for name, value in (data or {}).items():
            setattr(config.data, name, value)
        for name, value in task.items():
            setattr(config.task, name, value)
        config.model.checkpoint_name_or_path = str(tmp_path / "model")
        config.model.seq_length = 100
        config.output.dir = str(tmp_path / "evaluation")
        variants = {"greedy": {}, "sampling": {"do_sample": True, "temperature": 5.0, "seed": 3}}
        config.variants = {name: DecodingConfig(max_new_tokens=4, **variants[name]) for name in decodings}
        return config

    return make


@pytest.fixture
def shadow() -> Iterator[mock.Mock]:
    """Models without a network for all that is loaded; the mock counts the loads."""

    def fields(config: Any, *given: object) -> dict[str, Any]:
        return FIELDS | {f"decoding.{name}": value for name, value in vars(config.decoding).items()}

    def load(*given: Any, **named: Any) -> LLM:
        return make_llm(shared_tokenizer())

    tokenizer = shared_tokenizer()  # before its loading is replaced
    place = "mindbatch.tasks.evaluate.runs"
    with (
        mock.patch(f"{place}.LLM.from_config", side_effect=load) as loads,
        mock.patch("mindbatch.tasks.evaluate.requests.Tokenizer.load", return_value=tokenizer),
        mock.patch(f"{place}.fingerprint_fields", side_effect=fields),
        mock.patch(f"{place}.open_model"),
        mock.patch("mindbatch.tasks.evaluate.task.save_config"),
    ):
        yield loads
