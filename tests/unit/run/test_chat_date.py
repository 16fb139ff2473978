"""The date that chat templates write: one for a whole run, on whatever days its sessions are."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from mindbatch.io.errors import ConfigError
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord
from mindbatch.llm import LLM
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.run.batch_config import BatchConfig, ReplayConfig
from mindbatch.tasks import replay
from shadow_llm import load_tokenizer, make_llm
from stub_job import FIELDS, Interrupting, job_config, make_job, results

DATED = "{{ strftime_now('%d %b %Y %H:%M:%S') }} {{ messages[0].content }}"
FIRST, SECOND = "2026-07-30", "2026-07-31"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(tmp_path_factory.mktemp("dated"), chat_template=DATED)


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    rows = [{"messages": [{"role": "user", "content": f"Question {number}?"}]} for number in range(12)]
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer) -> Callable[..., int]:
    """Runs a job on a day; it is interrupted after some steps where these are given."""

    def run(day: str, config: BatchConfig, steps: int | None = None, **options: Any) -> int:
        for place in ("mindbatch.run.job.today", "mindbatch.prompts.chat.today"):
            monkeypatch.setattr(place, lambda: day)

        def load() -> Any:
            llm = make_llm(tokenizer, batch_size=2)
            return llm if steps is None else Interrupting(llm, steps)

        return make_job(config, load=load, **options).run()

    return run


def interrupted_on(on: Callable[..., int], day: str, config: BatchConfig) -> None:
    with pytest.raises(KeyboardInterrupt):
        on(day, config, steps=9)


def test_a_run_resumed_on_another_day_is_as_an_unbroken_one(
    tmp_path: Path, chats: Path, on: Callable[..., int]
) -> None:
    on(FIRST, job_config(chats, tmp_path / "whole"))
    on(SECOND, job_config(chats, tmp_path / "later"))
    assert results(tmp_path / "whole") != results(tmp_path / "later")
    config = job_config(chats, tmp_path / "run")
    interrupted_on(on, FIRST, config)
    assert on(SECOND, config) == 0
    assert results(tmp_path / "run") == results(tmp_path / "whole")
    assert RunRecord.read(RunFolder(tmp_path / "run")).date == FIRST
    assert orjson.loads((tmp_path / "run/manifest.json").read_bytes())["date"] == FIRST


def test_a_date_can_be_given_and_is_kept_to(tmp_path: Path, chats: Path, on: Callable[..., int]) -> None:
    on(FIRST, job_config(chats, tmp_path / "whole"))
    config = job_config(chats, tmp_path / "run", date=FIRST)
    interrupted_on(on, SECOND, config)
    with pytest.raises(ConfigError, match=f"other settings: data.date {FIRST} -> {SECOND}; "):
        on(SECOND, replace(config, data=replace(config.data, date=SECOND)))
    assert on(SECOND, replace(config, data=replace(config.data, date=None))) == 0
    assert results(tmp_path / "run") == results(tmp_path / "whole")


def test_failed_rows_are_tried_again_and_rows_replayed_with_the_date_of_the_run(
    tmp_path: Path, on: Callable[..., int], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(name: str, second: str) -> Path:
        rows = [{"messages": [{"role": "user", "content": text}]} for text in ("hi", second)]
        (tmp_path / name).write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
        return tmp_path / name

    on(FIRST, job_config(write("whole.jsonl", "short"), tmp_path / "whole"))
    config = job_config(write("rows.jsonl", "x" * 300), tmp_path / "run")
    assert on(FIRST, config) == 1
    write("rows.jsonl", "short")
    assert on(SECOND, config, retry=True) == 0
    assert results(tmp_path / "run") == results(tmp_path / "whole")
    asked = ReplayConfig(data=config.data, output=config.output, decoding=config.decoding, key="1")
    monkeypatch.setattr(LLM, "from_config", lambda config: make_llm(tokenizer))
    monkeypatch.setattr("mindbatch.tasks.replay.fingerprint_fields", lambda config: FIELDS)
    assert replay.run(asked) == 0
