"""Rows that are errors: how many may be, and that a job ends as soon as it is known that there are more."""

import io
import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED, ConfigError
from mindbatch.run.job import TooManyErrors
from mindbatch.run.progress import ReadingLine
from stub_job import job_config, lines_of, make_job, never

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
    (fault,) = caught.value.faults
    assert fault.startswith(f"data.max_errors={most}: more rows than that are errors (rows.jsonl:{line}: ")
    assert fault.endswith("); give a larger number, or null for no limit")


@pytest.mark.parametrize("most", [3, None])
def test_as_many_as_may_be_are_errors_of_their_rows(tmp_path: Path, bad_rows: Path, most: int | None) -> None:
    assert make_job(job_config(bad_rows, tmp_path / "run", max_errors=most)).run() == EXIT_FAILED
    assert len(lines_of(tmp_path / "run/errors.jsonl")) == 3


@pytest.mark.parametrize("chosen", [{"skip": 5}, {"limit": 4}, {"skip": 2, "limit": 2}])
def test_only_chosen_rows_count(tmp_path: Path, bad_rows: Path, chosen: dict[str, int]) -> None:
    config = job_config(bad_rows, tmp_path / "run", max_errors=1, **chosen)
    config.data.prompt_column = "prompt"
    if "limit" in chosen:
        assert make_job(config).run() == EXIT_FAILED
    else:  # the last row alone, which no column helps
        with pytest.raises(ConfigError, match="none of the 1 rows"):
            make_job(config).run()


def test_rows_of_a_shuffled_choice_are_counted_once_it_is_known(tmp_path: Path, bad_rows: Path) -> None:
    def config(most: int) -> Any:
        return job_config(bad_rows, tmp_path / "run", shuffle_seed=1, limit=5, max_errors=most)

    with pytest.raises(TooManyErrors, match=r"^data.max_errors=1: more .* are errors \(3 of .* already\)"):
        make_job(config(1), load=never).run()
    assert make_job(config(3)).run() == EXIT_FAILED


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
    assert make_job(config).run() == EXIT_FAILED
    assert len(lines_of(tmp_path / "run/results.jsonl")) == 20


def test_retried_rows_may_be_as_many_errors_again(tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl", {"prompt": "a"}, LONG, LONG)
    make_job(job_config(data, tmp_path / "run")).run()
    config = job_config(data, tmp_path / "run", max_errors=1)
    with pytest.raises(TooManyErrors, match=r"\(rows.jsonl:3: "):
        make_job(config, retry=True).run()
    assert make_job(job_config(data, tmp_path / "run")).run() == EXIT_FAILED
    assert make_job(job_config(data, tmp_path / "run"), retry=True).run() == EXIT_FAILED


def test_a_finished_run_can_be_asked_for_again(tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl", {"prompt": "a"})
    config = job_config(data, tmp_path / "run", max_errors=0)
    assert [make_job(config).run(), make_job(config, load=never).run()] == [EXIT_DONE] * 2


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("kind", "file", "expected"),
    [
        (
            "auto",
            Screen(),
            "\r\x1b[K4,096 rows read, 1 error" + "\r\x1b[K8,192 rows read, 2 errors" + "\r\x1b[K",
        ),
        ("auto", io.StringIO(), "4,096 rows read, 1 error\n8,192 rows read, 2 errors\n"),
        ("plain", Screen(), "4,096 rows read, 1 error\n8,192 rows read, 2 errors\n"),
        ("none", Screen(), ""),
    ],
    ids=["moving", "no terminal", "plain", "none"],
)
def test_reading_that_takes_long_is_shown(kind: str, file: io.StringIO, expected: str) -> None:
    seconds = iter(range(0, 1000, 31))
    line = ReadingLine(kind, file, clock=lambda: next(seconds))
    for rows in range(1, 9000):
        line(rows, rows // 4096)
    line.close()
    assert file.getvalue() == expected


def test_reading_that_takes_a_moment_shows_nothing() -> None:
    file = Screen()
    line = ReadingLine("auto", file, clock=lambda: 0.0)
    for rows in range(1, 9000):
        line(rows, 0)
    line.close()
    assert not re.sub(r"\s", "", file.getvalue())
