"""What holds for a whole job: how many rows may be errors, and the date that chat templates write."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED, ConfigError
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord
from mindbatch.llm import LLM
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.run.batch_config import BatchConfig, ReplayConfig
from mindbatch.run.job import TooManyErrors
from mindbatch.tasks import replay
from shadow_llm import load_tokenizer, make_llm
from stub_job import FIELDS, Interrupting, job_config, lines_of, make_job, never, results

LONG = {"prompt": "why " * 5000}


def written(path: Path, *rows: dict[str, Any] | str) -> Path:
    lines = [row if isinstance(row, str) else orjson.dumps(row).decode() for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture
def bad_rows(tmp_path: Path) -> Path:
    """Six rows of which three can be read, and none of the others."""
    good: list[dict[str, Any] | str] = [{"prompt": f"Question {number}"} for number in range(3)]
    return written(tmp_path / "rows.jsonl", *good, "", "x", "{}")


@pytest.mark.parametrize(("most", "line"), [(0, 4), (1, 5), (2, 6)])
def test_rows_that_cannot_be_read_end_the_job_before_the_model_is_loaded(
    tmp_path: Path, bad_rows: Path, most: int, line: int
) -> None:
    config = job_config(bad_rows, tmp_path / "run", max_errors=most)
    with pytest.raises(ConfigError) as caught:
        make_job(config, load=never).run()
    (fault,) = caught.value.lines
    assert fault.startswith(f"data.max_errors: more than {most} rows are errors (rows.jsonl:{line}: ")
    assert fault.endswith("); a larger number allows more")


def test_rows_of_a_shuffled_choice_are_counted_once_it_is_known(tmp_path: Path, bad_rows: Path) -> None:
    def config(most: int) -> Any:
        return job_config(bad_rows, tmp_path / "run", shuffle_seed=1, limit=5, max_errors=most)

    with pytest.raises(
        TooManyErrors, match=r"^data.max_errors: more than 1 .* are errors \(3 of .* already\)"
    ):
        make_job(config(1), load=never).run()
    assert make_job(config(3)).run() == EXIT_DONE


def test_rows_that_fail_end_a_job_that_goes_on_with_a_larger_number(tmp_path: Path) -> None:
    good = [{"prompt": f"Question {number}"} for number in range(20)]
    data = written(tmp_path / "rows.jsonl", *good[:10], LONG, LONG, *good[10:], LONG)
    config = job_config(data, tmp_path / "run", max_errors=1)
    with pytest.raises(TooManyErrors, match=r"\(rows.jsonl:12: the prompt has 20000 tokens"):
        make_job(config).run()
    manifest = orjson.loads((tmp_path / "run/manifest.json").read_bytes())
    assert manifest["status"] == "interrupted"
    with pytest.raises(TooManyErrors, match=r"\(2 of .*/run already\)"):
        make_job(config, load=never).run()
    config.data.max_errors = 3
    assert make_job(config).run() == EXIT_DONE
    assert len(lines_of(tmp_path / "run/results.jsonl")) == 20


def test_retried_rows_may_be_as_many_errors_again(tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl", {"prompt": "a"}, LONG, LONG)
    make_job(job_config(data, tmp_path / "run")).run()
    config = job_config(data, tmp_path / "run", max_errors=1)
    with pytest.raises(TooManyErrors, match=r"\(rows.jsonl:3: "):
        make_job(config, retry=True).run()
    assert make_job(job_config(data, tmp_path / "run")).run() == EXIT_FAILED
    assert make_job(job_config(data, tmp_path / "run"), retry=True).run() == EXIT_FAILED


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
