"""The page of a run: what it counts, that its texts are text, and that it is the same twice."""

import csv
import re
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from browser import PHONE, Tags, needs_chromium, width_on_a_phone
from mindbatch.cli import main
from mindbatch.ledger.entries import Entry
from mindbatch.ledger.run_folder import RunFolder, RunLock
from mindbatch.ledger.run_record import RunRecord
from mindbatch.tasks.runs import outcomes
from mindbatch.tasks.runs.outcomes import Outcomes, read_outcomes
from mindbatch.tasks.runs.prompts import prompts_of
from mindbatch.tasks.runs.report import MAX_INTERVALS, report_page
from mindbatch.tasks.runs.run_state import state_of
from small_runs import failure, generation, make_run, result

HOSTILE = (
    "</p></details></script><script>alert(1)</script><img src=x onerror=alert(2)> \u202e\x07 javascript:3"
)
LONG = "a_name_that_no_phone_has_room_for_even_if_it_is_a_large_one_" * 3


def manifest(status: str = "complete", results: str = "results.jsonl", **more: Any) -> dict[str, Any]:
    rows = {"total": 30, "done": 29, "failed": 1}
    return {"status": status, "rows": rows, "results": [results], **more}


def sample(seconds: float, tokens: int, rows: int) -> dict[str, Any]:
    return {"time": 1.0, "seconds": seconds, "rows_total": 30, "rows_done": rows, "generated_tokens": tokens}


def page_of(folder: RunFolder) -> str:
    return report_page(state_of(folder.path))


def read(folder: RunFolder, *, is_complete: bool = False) -> Outcomes:
    return read_outcomes(folder, RunRecord.read(folder), is_complete=is_complete)


def write_results(folder: RunFolder, prompts: dict[str, str]) -> None:
    lines = (orjson.dumps({"key": key, "prompt": prompt}) + b"\n" for key, prompt in prompts.items())
    (folder.path / "results.jsonl").write_bytes(b"".join(lines))


def test_what_has_ended_is_counted_and_the_last_entry_of_a_row_counts(tmp_path: Path) -> None:
    cut = Entry(
        "c",
        "asked",
        "result",
        {"generations": [generation("xy", finish_reason="length")], "prompt_tokens": 7},
    )
    folder = make_run(
        tmp_path, failure("a"), result("b", "one", "three"), cut, result("a", "x"), failure("d")
    )
    seen = read(folder)
    assert sorted(seen.prompt_tokens) == [1, 1, 7]
    assert sorted(seen.output_tokens) == [1, 2, 3, 5]
    assert seen.finish_reasons == {"stop": 3, "length": 1}
    assert [(kind.stage, kind.reason, kind.key, kind.count) for kind in seen.errors] == [
        ("prompt", "too long", "d", 1)
    ]
    assert seen.is_whole


def test_the_errors_of_a_complete_run_are_all_of_them_and_alike_ones_are_one_kind(tmp_path: Path) -> None:
    errors = [
        {"key": None, "source": "x", "line": 1, "stage": "read", "reason": "column 7: not 'a b'"},
        {"key": "q", "source": "x", "line": 2, "stage": "read", "reason": "column 1,200: not 'c'"},
        {"key": "r", "source": "x", "line": 3, "stage": "row", "reason": "column 7: not 'a b'"},
        {
            "custom_id": "s",
            "response": {"body": {"error": {"message": "x:4: too 5", "code": "long"}}},
            "error": None,
        },
        {"custom_id": None, "response": None, "error": {"code": "bad_line", "message": "x:5: no request"}},
    ]
    folder = make_run(tmp_path, result("a", "x"), failure("z"), errors=errors)
    with folder.errors.open("ab") as file:
        file.write(b"[1]\n{\n")
    assert [
        (kind.count, kind.stage, kind.reason, kind.key) for kind in read(folder, is_complete=True).errors
    ] == [
        (2, "read", "column 7: not 'a b'", None),
        (1, "bad_line", "no request", None),
        (1, "long", "too 5", "s"),
        (1, "row", "column 7: not 'a b'", "r"),
    ]
    assert [kind.key for kind in read(folder).errors] == ["z"]


def test_of_a_large_ledger_blocks_are_read_and_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [result(f"{number:05}", "x" * (number % 7 + 1)) for number in range(3000)]
    folder = make_run(tmp_path, *entries, manifest=manifest())
    whole = read(folder)
    monkeypatch.setattr(outcomes, "MAX_WHOLE_BYTES", 100_000)
    monkeypatch.setattr(outcomes, "NUM_BLOCKS", 10)
    monkeypatch.setattr(outcomes, "BLOCK_BYTES", 2_000)
    part = read(folder)
    size = folder.ledger.stat().st_size
    assert (part.num_bytes, part.is_whole, whole.is_whole) == (size, False, True)
    assert 15_000 < part.num_read < 25_000
    assert len(part.prompt_tokens) == pytest.approx(part.num_read / size * 3000, rel=0.05)
    keys = sorted(entry.key for entry in part.rows)
    assert len(keys) == 10
    assert {key[0:2] for key in keys} > {"00"}, "all of one end"
    assert f"rows are of this sample, of {len(part.prompt_tokens)} rows with a result" in page_of(folder)
    monkeypatch.setattr(outcomes, "BLOCK_BYTES", 1 << 20)
    assert sorted(read(folder).output_tokens) == sorted(whole.output_tokens)  # no line twice, and none lost


def test_a_page_is_the_same_twice_and_of_ten_rows_with_their_prompts(tmp_path: Path) -> None:
    rows = {f"key{number}": f"prompt {number}" for number in range(30)}
    folder = make_run(tmp_path, *(result(key, f"answer of {key}") for key in rows), manifest=manifest())
    write_results(folder, rows)
    page = page_of(folder)
    assert page == page_of(folder)
    shown = re.findall(r"<h3>(key\d+)</h3>", page)
    assert len(set(shown)) == 10
    assert shown != [*rows][:10]
    assert all(f">prompt {key[3:]}</p>" in page and f">answer of {key}</p>" in page for key in shown)


def test_hostile_texts_are_text(tmp_path: Path) -> None:
    errors = [{"key": HOSTILE, "source": HOSTILE, "line": 1, "stage": HOSTILE, "reason": HOSTILE}]
    reason = Entry(
        HOSTILE, "asked", "result", {"generations": [generation(HOSTILE * 20)], "prompt_tokens": 1}
    )
    settings = {"model": {"type": HOSTILE}, "data": {"path": HOSTILE}}
    folder = make_run(
        tmp_path,
        reason,
        result("b", HOSTILE),
        failure(HOSTILE + "c"),
        manifest=manifest(
            settings=settings, versions={HOSTILE: HOSTILE}, computed_with=[{"rows": 2, HOSTILE: HOSTILE}]
        ),
        errors=errors,
        samples=[sample(0, 0, 0), sample(5, 9, 9)],
        command=("mindbatch", HOSTILE),
    )
    write_results(folder, {HOSTILE: HOSTILE, "b": HOSTILE * 30})
    page = page_of(folder)
    seen = Tags(page)
    assert not {"script", "img", "a", "iframe", "link", "object"} & {tag for tag, _ in seen.tags}
    assert not [name for _, attributes in seen.tags for name in attributes if name.startswith("on")]
    policies = [entry["content"] or "" for tag, entry in seen.tags if tag == "meta" and "http-equiv" in entry]
    assert [policy.partition(";")[0] for policy in policies] == ["default-src 'none'"]
    assert seen.text.count("alert(1)") > 10
    assert "\u202e" not in page
    assert "\x07" not in page


def test_the_markup_is_closed(tmp_path: Path) -> None:
    folder = make_run(
        tmp_path, result("a", "x" * 2000), manifest=manifest(), samples=[sample(0, 0, 0), sample(5, 9, 9)]
    )
    page = page_of(folder)
    for tag in (
        "html",
        "body",
        "main",
        "section",
        "div",
        "details",
        "figure",
        "svg",
        "g",
        "p",
        "desc",
        "pre",
    ):
        assert len(re.findall(f"<{tag}[ >]", page)) == page.count(f"</{tag}>"), tag
    assert "<details" in page.partition("Settings")[0], "a long text is folded"


def test_speeds_are_those_of_the_samples_and_sessions_stand_side_by_side(tmp_path: Path) -> None:
    samples = [sample(0, 0, 0), sample(5, 500, 5), sample(10, 600, 6), sample(1, 0, 6), sample(6, 1000, 10)]
    folder = make_run(tmp_path, result("a", "x"), manifest=manifest(), samples=samples)
    page = page_of(folder)
    tokens, rows = re.findall(r"<desc[^>]*>(until [^<]*)</desc>", page)
    assert tokens == "until 5.0 s: 100.0; until 10 s: 20.0; until 15 s: 200.0; "
    assert rows == "until 5.0 s: 1.0; until 10 s: 0.2; until 15 s: 0.8; "
    assert page.count('class="resumed"') == 2  # one in each chart


def test_of_a_long_run_intervals_are_joined_and_the_last_takes_the_rest(tmp_path: Path) -> None:
    samples = [sample(second, 10 * second, 0) for second in range(101)] + [sample(101, 1300, 0)]
    page = page_of(make_run(tmp_path, manifest=manifest(), samples=samples))
    [tokens] = re.findall(r"<desc[^>]*>(until [^<]*)</desc>", page)
    *intervals, last = tokens.removesuffix("; ").split("; ")
    assert len(intervals) == MAX_INTERVALS - 11
    assert {interval.partition(": ")[2] for interval in intervals} == {"10.0"}
    assert last == "until 101 s: 106.7"


def test_a_run_that_has_not_ended_has_a_page_of_what_there_is(tmp_path: Path) -> None:
    folder = make_run(tmp_path, result("a", "x"), failure("b"), manifest=manifest("running"))
    with RunLock(folder):
        page = page_of(folder)
    assert "The run is not complete" in page
    assert "1 row: prompt" in page
    assert "Prompt tokens" in page
    assert "<h1>" in page_of(make_run(tmp_path / "empty"))


def test_an_embedding_has_no_text(tmp_path: Path) -> None:
    vector = {**generation("", token_ids=[]), "embedding": [0.5, 0.25]}
    row = Entry("a", "asked", "result", {"generations": [vector], "prompt_tokens": 3})
    page = page_of(make_run(tmp_path, row, manifest=manifest(), samples=[sample(0, 0, 0), sample(5, 0, 9)]))
    assert "embedding of 2 numbers" in page
    assert "(no text)" not in page
    assert "Output tokens" not in page
    assert "Generated tokens per second" not in page
    assert "Rows per second" in page
    assert "The result file holds no prompts" in page


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
def test_prompts_are_those_of_the_result_file(format: str, tmp_path: Path) -> None:
    folder = make_run(tmp_path, manifest=manifest(results=f"results.{format}"))
    rows = [{"key": f"k{number}", "prompt": f'"prompt", {number}\n'} for number in range(20)]
    path = folder.path / f"results.{format}"
    if format == "csv":
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, ["key", "prompt"])
            table.writeheader()
            table.writerows(rows)
    elif format == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    assert prompts_of(folder, {"k3", "k11", "none"}) == {"k3": '"prompt", 3\n', "k11": '"prompt", 11\n'}
    path.write_bytes(b'{"key":"k3",')
    assert prompts_of(folder, {"k3"}) == {}
    path.unlink()
    assert prompts_of(folder, {"k3"}) == {}


def test_the_file_is_written_private_and_not_over_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a", result("a", "x"), manifest=manifest())
    page = tmp_path / "run.html"
    command = ["runs", str(tmp_path / "a"), f"report={page}"]
    for _ in range(2):  # an earlier page is replaced
        assert main(command) == 0
        assert f"written {page}" in capsys.readouterr().err
    assert "29 of 30 rows done" in page.read_text()
    page.write_text("mine")
    assert main(command) == 2
    assert "already exists and is no report" in capsys.readouterr().err
    assert page.read_text() == "mine"
    page.unlink()
    for words, message in (
        (["runs", str(tmp_path), f"report={page}"], "is no folder of a run"),
        ([*command, "watch=true"], "has no effect with watch=true"),
        ([*command, "format=json"], "has no effect with format=json"),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err
    assert not page.exists()


@needs_chromium
@pytest.mark.slow
def test_nothing_runs_out_of_a_phone(tmp_path: Path) -> None:
    errors = [{"key": LONG, "source": LONG, "line": 1, "stage": LONG, "reason": LONG}]
    samples = [sample(0, 0, 0), sample(5, 9_000_000, 9), sample(1, 0, 9), sample(9000, 10**9, 20)]
    folder = make_run(
        tmp_path / LONG[:100],
        *(result(f"{number}{LONG}", LONG, LONG * 20) for number in range(6)),
        manifest=manifest(settings={"model": {"type": LONG}}, versions={LONG: LONG}),
        errors=errors,
        samples=samples,
        command=(LONG,),
    )
    write_results(folder, {f"{number}{LONG}": LONG * 20 for number in range(6)})
    assert width_on_a_phone(page_of(folder), tmp_path) <= PHONE
