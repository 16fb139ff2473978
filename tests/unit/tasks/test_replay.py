"""Replaying one row of a run: found by key, run again, compared."""

from pathlib import Path
from unittest import mock

import orjson
import pytest

from mindbatch.io.errors import ConfigError, PromptError
from mindbatch.run.batch_config import BatchConfig, ReplayConfig
from mindbatch.tasks.replay import _with_one_replica, run
from shadow_llm import make_llm
from stub_job import FIELDS, job_config, make_job, shared_tokenizer


@pytest.fixture
def config(tmp_path: Path) -> BatchConfig:
    """A run of three rows: a good one, one that is too long, and one that cannot be read."""
    rows = [{"id": "a", "prompt": "why"}, {"id": "b", "prompt": "x" * 300}, {"id": "c", "prompt": 7}]
    data = tmp_path / "rows.jsonl"
    data.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    config = job_config(data, tmp_path / "run", key_column="id")
    make_job(config).run()
    return config


def replay(config: BatchConfig, key: str, max_new_tokens: int = 4) -> int:
    asked = ReplayConfig(data=config.data, output=config.output, decoding=config.decoding, key=key)
    asked.decoding.max_new_tokens = max_new_tokens
    fields = {
        **FIELDS,
        "data.template": None,
        **{f"decoding.{name}": value for name, value in vars(asked.decoding).items()},
    }
    llm = make_llm(shared_tokenizer())
    with (
        mock.patch("mindbatch.llm.LLM.from_config", return_value=llm),
        mock.patch("mindbatch.tasks.replay.fingerprint_fields", return_value=fields),
    ):
        return run(asked)


def test_the_same_row_again(config: BatchConfig, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(config, "a") == 0
    first, text, verdict = capsys.readouterr().out.splitlines()
    assert first.endswith("rows.jsonl:1: key a")
    assert text.startswith("[0] ")
    assert verdict == "equal to the run"


def test_other_settings_are_told_and_compared(
    config: BatchConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(config, "a", max_new_tokens=6) == 1
    out = capsys.readouterr().out
    assert "other settings: decoding.max_new_tokens 4 -> 6" in out
    assert "changed: generation 0, first differing token 4" in out


def test_a_row_that_failed_fails_again(config: BatchConfig, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(config, "b") == 0
    assert "error: the prompt has 300 tokens" in capsys.readouterr().out


def test_rows_that_cannot_be_replayed(config: BatchConfig) -> None:
    with pytest.raises(PromptError, match=r"rows\.jsonl:3: .*7"):
        replay(config, "c")
    with pytest.raises(ConfigError, match="key=d: no row of .* has this key"):
        replay(config, "d")


@pytest.mark.parametrize(("worker_num", "replicas"), [(None, 1), (3, 3)])
def test_a_row_needs_one_replica_unless_the_processes_are_counted(
    worker_num: int | None, replicas: int
) -> None:
    asked = ReplayConfig()
    asked.parallel.data_parallel, asked.launch.worker_num = 3, worker_num
    assert _with_one_replica(asked).parallel.data_parallel == replicas
    assert asked.parallel.data_parallel == 3


def test_what_it_is_computed_with_is_told_where_it_differs(
    config: BatchConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(config, "a") == 0
    assert "computed with" not in capsys.readouterr().out
    with mock.patch("mindbatch.llm.LLM.kernels", "other"):
        assert replay(config, "a") == 0
    assert "\ncomputed with: kernels shadow -> other\n" in capsys.readouterr().out
