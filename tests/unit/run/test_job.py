"""Batch jobs: every row once, whatever interrupts them; nothing mixed, nothing written over."""

import csv
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from mindbatch.config.saved import WrittenSettings
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED, CheckpointError, ConfigError, RankError
from mindbatch.io.storage import Storage, StorageError
from mindbatch.ledger.run_folder import RunFolder, RunLock
from mindbatch.llm import LLM
from mindbatch.run.batch_config import BatchConfig
from shadow_llm import greedy_tokens, make_llm
from stub_job import (
    Interrupting,
    interrupted,
    job_config,
    lines_of,
    make_job,
    never,
    results,
    shared_tokenizer,
)


def watched(see: Callable[[str], None]) -> Callable[[], LLM]:
    """A model that shows the key of each row before the row is run."""

    def load() -> LLM:
        llm = make_llm(shared_tokenizer(), batch_size=8)
        steps = llm.steps
        llm.steps = lambda rows: steps(see(row[0].key) or row for row in rows)  # type: ignore
        return llm

    return load


def test_every_row_has_its_generation_in_the_order_of_the_data(tmp_path: Path, data: Path) -> None:
    config = job_config(data, tmp_path / "run", key_column="id", output={"token_ids": True})
    assert make_job(config).run() == EXIT_DONE
    lines = lines_of(tmp_path / "run/results.jsonl")
    assert [line["key"] for line in lines] == [f"row-{number}" for number in range(30)]
    for line, row in zip(lines, lines_of(data), strict=True):
        assert line["prompt"] == row["prompt"]
        expected = greedy_tokens(shared_tokenizer().encode(row["prompt"]), 4)
        assert line["generations"][0]["token_ids"] == expected
    assert (tmp_path / "run/errors.jsonl").read_bytes() == b""
    manifest = orjson.loads((tmp_path / "run/manifest.json").read_bytes())
    assert manifest["status"] == "complete"
    assert manifest["rows"] == {"total": 30, "done": 30, "failed": 0}
    assert manifest["tokens"]["generated"] == 120
    assert manifest["dataset"]


@pytest.mark.parametrize(
    "error",
    [
        RankError("rank 1 ended with signal 9"),
        MemoryError(),
        OSError(errno.EIO, "x"),
    ],
    ids=repr,
)
def test_a_run_that_was_ended_from_outside_says_how_to_go_on(
    error: Exception, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = job_config(data, tmp_path / "run", key_column="id")
    config.progress = "plain"
    failing = Interrupting(make_llm(shared_tokenizer()), 9, error)
    with pytest.raises(type(error)):
        make_job(config, load=lambda: failing).run()
    assert failing.is_closed
    done = orjson.loads((tmp_path / "run/manifest.json").read_bytes())["rows"]["done"]
    assert 0 < done < 30
    assert f"run: {done} of 30 rows done; the same command resumes\n" in capsys.readouterr().err
    assert make_job(config).run() == EXIT_DONE


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, data: Path) -> None:
    whole = job_config(data, tmp_path / "whole", key_column="id")
    make_job(whole).run()
    config = job_config(data, tmp_path / "run", key_column="id")
    interrupted(config, 9)
    manifest = orjson.loads((tmp_path / "run/manifest.json").read_bytes())
    assert manifest["status"] == "interrupted"
    assert 0 < manifest["rows"]["done"] < 30
    assert not (tmp_path / "run/results.jsonl").exists()
    seen: list[str] = []
    assert make_job(config, load=watched(seen.append)).run() == EXIT_DONE
    assert len(seen) == 30 - manifest["rows"]["done"]
    assert results(tmp_path / "run") == results(tmp_path / "whole")


def test_there_is_one_file_of_results(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that are added, or tried again, would not come into another; what the run did not write stays."""
    rows, run = data.read_bytes().splitlines(keepends=True), tmp_path / "run"
    data.write_bytes(b"".join(rows[:20]))
    make_job(job_config(data, run)).run()
    (run / "results.csv").write_text("of the user")
    data.write_bytes(b"".join(rows))
    config = job_config(data, run, output={"format": "parquet"})
    config.progress = "plain"
    with pytest.raises(StorageError):
        make_job(config, storage=RefusesToRemove()).run()
    assert {each.name for each in run.glob("results.*")} == {
        "results.jsonl",
        "results.parquet",
        "results.csv",
    }
    capsys.readouterr()
    make_job(config, load=never).run()
    assert {each.name for each in run.glob("results.*")} == {"results.parquet", "results.csv"}
    said = capsys.readouterr().err
    assert f"{run}: results.jsonl is removed; results.parquet has the results now\n" in said
    make_job(config, load=never).run()
    assert "removed" not in capsys.readouterr().err
    make_job(job_config(data, run, output={"format": "jsonl"}), load=never, retry=True).run()
    assert len(lines_of(run / "results.jsonl")) == 30
    assert {each.name for each in run.glob("results.*")} == {"results.jsonl", "results.csv"}


class RefusesToRemove(Storage):
    def remove(self, path: Path) -> None:
        raise OSError(errno.EROFS, "read-only")


def test_a_run_that_came_to_nothing_is_in_nobodys_way(tmp_path: Path, data: Path) -> None:
    """Its model was damaged, say: with the mended one the run is another one, and nothing can be lost."""

    def damaged() -> Any:
        raise CheckpointError("damaged")

    with pytest.raises(CheckpointError):
        make_job(job_config(data, tmp_path / "run"), load=damaged).run()
    changed = job_config(data, tmp_path / "run", decoding={"max_new_tokens": 5})
    assert make_job(changed).run() == EXIT_DONE
    make_job(job_config(data, tmp_path / "other", decoding={"max_new_tokens": 5})).run()
    assert results(tmp_path / "run") == results(tmp_path / "other")


def test_a_run_of_which_no_row_has_a_result_is_in_nobodys_way_either(tmp_path: Path, data: Path) -> None:
    """All rows have failed, of which the ledger knows; what has results is kept."""
    longer = {"decoding": {"max_new_tokens": 5}}
    rows = tmp_path / "long.jsonl"
    rows.write_text('{"prompt": "%s"}\n' % ("a" * 500) * 2)
    assert make_job(job_config(rows, tmp_path / "run")).run() == EXIT_FAILED
    assert RunFolder(tmp_path / "run").ledger.stat().st_size
    assert make_job(job_config(data, tmp_path / "run", **longer)).run() == EXIT_DONE
    with pytest.raises(ConfigError, match="was run with other settings"):
        make_job(job_config(data, tmp_path / "run"), load=never).run()


def test_another_run_can_go_beside_or_take_the_place(tmp_path: Path, data: Path) -> None:
    make_job(job_config(data, tmp_path / "run")).run()
    first = results(tmp_path / "run")
    options = {"decoding": {"max_new_tokens": 5}}
    beside = job_config(data, tmp_path / "run", output={"on_mismatch": "new_dir"}, **options)
    make_job(beside).run()
    assert results(tmp_path / "run") == first
    second = results(tmp_path / "run-2")
    assert second != first
    make_job(beside, load=never).run()
    assert not (tmp_path / "run-3").exists()
    make_job(job_config(data, tmp_path / "run", output={"on_mismatch": "overwrite"}, **options)).run()
    assert results(tmp_path / "run") == second


def test_rows_may_be_added_but_not_changed(tmp_path: Path, data: Path) -> None:
    config = job_config(data, tmp_path / "run", key_column="id")
    make_job(config).run()
    rows = data.read_bytes()
    data.write_bytes(b'{"id": "new", "prompt": "at the top"}\n' + rows)
    make_job(config).run()
    assert [line["key"] for line in lines_of(tmp_path / "run/results.jsonl")][:2] == ["new", "row-0"]
    manifest = orjson.loads((tmp_path / "run/manifest.json").read_bytes())
    assert manifest["dataset"]["rows.jsonl"]["bytes"] == data.stat().st_size
    assert [session["rows"] for session in manifest["sessions"]] == [30, 1]
    before = results(tmp_path / "run")
    data.write_bytes(rows.replace(b"Question 3:", b"Question three:"))
    with pytest.raises(ConfigError, match=r"data has changed.*row-3 \(\S*rows.jsonl:4\)"):
        make_job(config, load=never).run()
    assert results(tmp_path / "run") == before


def test_keys_that_stand_twice_are_refused_with_both_lines_and_leave_nothing(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"id": 1, "prompt": "a"}\n{"id": 2, "prompt": "b"}\n{"id": "1", "prompt": "c"}\n')
    with pytest.raises(
        ConfigError, match=r"rows\.jsonl:3: key '1' stands on line 1 of \S*rows\.jsonl already"
    ):
        make_job(job_config(data, tmp_path / "run", key_column="id"), load=never).run()
    assert not (tmp_path / "run").exists()


def test_where_no_row_has_a_result_the_reason_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": ["a", "b"]}\n{"prompt": ""}\n')
    config = job_config(data, tmp_path / "run")
    config.progress = "plain"
    assert make_job(config, load=never).run() == EXIT_FAILED
    assert (
        "rows.jsonl:1: prompt: found a list of texts, [a, b]; a prompt is one text" in capsys.readouterr().err
    )


def test_retry_runs_what_failed_and_nothing_else(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "a"}\n{"prompt": "' + "x" * 300 + '"}\n{"prompt": 7}\n')
    config = job_config(data, tmp_path / "run")
    assert make_job(config).run() == EXIT_FAILED
    first = lines_of(tmp_path / "run/results.jsonl")
    data.write_text('{"prompt": "a"}\n{"prompt": "xxx"}\n{"prompt": "seven"}\n')
    assert make_job(config, retry=True).run() == EXIT_DONE
    lines = lines_of(tmp_path / "run/results.jsonl")
    assert lines[0] == first[0]
    assert [line["prompt"] for line in lines] == ["a", "xxx", "seven"]
    assert (tmp_path / "run/errors.jsonl").read_bytes() == b""


def test_only_a_run_that_has_ended_is_retried(tmp_path: Path, data: Path) -> None:
    config = job_config(data, tmp_path / "run")
    interrupted(config, 5)
    with pytest.raises(ConfigError, match=r"has not ended \(interrupted\); its own command resumes it"):
        make_job(config, load=never, retry=True).run()
    make_job(config).run()
    assert make_job(config, load=never, retry=True).run() == EXIT_DONE
    changed = job_config(data, tmp_path / "run", decoding={"max_new_tokens": 9})
    with pytest.raises(ConfigError, match="max_new_tokens 4 -> 9; rows are tried again with the settings"):
        make_job(changed, load=never, retry=True).run()


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path, data: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    config = job_config(data, folder.path)
    interrupted(config, 3)
    with RunLock(folder), pytest.raises(ConfigError, match="another run is writing here"):
        make_job(config, load=never).run()


def test_columns_of_the_data_stand_beside_the_results_in_every_format(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    data, run = tmp_path / "rows.jsonl", tmp_path / "run"
    rows = [{"n": 1, "label": "x", "odd": "=1"}, {"n": 2.5, "label": None, "odd": {"y": [1]}}, {}]
    data.write_bytes(b"".join(orjson.dumps({"prompt": "a", **row}) + b"\n" for row in rows))
    names = ["n", "label", "odd"]
    config = job_config(data, run)
    config.output.columns = names
    assert make_job(config).run() == EXIT_DONE
    found = [{name: line[name] for name in names} for line in lines_of(run / "results.jsonl")]
    assert found == [rows[0], rows[1], dict.fromkeys(names)]

    config.output.format = "csv"
    assert make_job(config, load=never).run() == EXIT_DONE
    with (run / "results.csv").open(newline="") as file:
        cells = [tuple(line[name] for name in names) for line in csv.DictReader(file)]
    assert cells == [("1", "x", "=1"), ("2.5", "", '{"y":[1]}'), ("", "", "")]

    config.output.format = "parquet"
    assert make_job(config, load=never).run() == EXIT_DONE
    found = pq.read_table(run / "results.parquet", columns=names).to_pylist()
    assert [line["n"] for line in found] == [1.0, 2.5, None]
    assert [line["label"] for line in found] == ["x", None, None]
    assert [line["odd"] for line in found] == ['"=1"', '{"y":[1]}', None]

    config.output.columns = ["labl"]
    with pytest.raises(ConfigError, match=r"output\.columns: no column labl; .* did you mean label"):
        make_job(config, load=never).run()


def test_a_row_has_its_own_decoding_parameters(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    rows = [{"max_new_tokens": 2}, None, {"top_k": 5}]
    data.write_bytes(
        b"".join(orjson.dumps({"prompt": "a", "how": how}) + b"\n" for how in rows) + b'{"prompt": "a"}\n'
    )
    assert make_job(job_config(data, tmp_path / "run", decoding_column="how")).run() == EXIT_FAILED
    lines = lines_of(tmp_path / "run/results.jsonl")
    assert [line["generated_tokens"] for line in lines] == [2, 4, 4]
    with pytest.raises(ConfigError, match=r"decoding_column: no column hoe; .* did you mean how"):
        make_job(job_config(data, tmp_path / "other", decoding_column="hoe"), load=never).run()
    assert "do_sample" in lines_of(tmp_path / "run/errors.jsonl")[0]["reason"]


def test_rows_that_are_computed_otherwise_than_before_are_told(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before they are computed, and though no progress is shown; the manifest counts both."""
    make_job(job_config(data, tmp_path / "whole", key_column="id")).run()
    config = job_config(data, tmp_path / "run", key_column="id")
    interrupted(config, 9)
    manifest = orjson.loads((tmp_path / "run/manifest.json").read_bytes())
    done = manifest["rows"]["done"]
    kind = {
        "device_target": "CPU",
        "dtype": "float32",
        "model_parallel": 1,
        "kernels": "shadow",
        "arithmetic": 4,
    }
    assert manifest["computed_with"] == [{"rows": done, **kind}]
    interrupted(config, 1)
    assert capsys.readouterr().err == "", "computed alike"
    config.parallel.model_parallel, config.model.quantization = 2, "int8"
    told: list[str] = []
    load = watched(lambda key: told.append(capsys.readouterr().err))
    assert make_job(config, load=load).run() == EXIT_DONE
    manifest = orjson.loads((tmp_path / "run/manifest.json").read_bytes())
    before, now = manifest["computed_with"]
    assert before == {**kind, "rows": before["rows"]}
    assert now == {**kind, "dtype": "int8", "model_parallel": 2, "rows": 30 - before["rows"]}
    differences = f"{before['rows']} rows before with dtype float32 -> int8, model_parallel 1 -> 2"
    assert told[0] == (
        f"mindbatch: {tmp_path / 'run'}: not computed alike: {differences}; a few tokens may be other ones "
        "than in an unbroken run\n"
        "mindbatch: parallel.model_parallel=2: sums over 2 slices have other last digits than those of one "
        "process; rare rows get other tokens\n"
    )
    assert results(tmp_path / "run") == results(tmp_path / "whole")


def test_a_seed_that_was_drawn_is_kept_to(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the same command, which draws another one, and by one that gives it."""

    def drawing(seed: int, name: str = "run") -> BatchConfig:
        sampling = {"do_sample": True, "temperature": 3.0, "seed": seed}
        config = job_config(data, tmp_path / name, key_column="id", decoding=sampling)
        config.drawn, config.progress = {"decoding.seed": seed}, "plain"
        config.written = WrittenSettings(BatchConfig, {"decoding.seed": "random"}, tmp_path)
        return config

    make_job(drawing(11, "whole")).run()
    make_job(drawing(12, "other")).run()
    assert results(tmp_path / "whole") != results(tmp_path / "other")
    interrupted(drawing(11), 9)
    interrupted(drawing(12), 5)
    assert f"{tmp_path / 'run'}: decoding.seed=11 was drawn\n" in capsys.readouterr().err
    assert (tmp_path / "run/config.yaml").read_text() == "decoding:\n  seed: 11\n"
    given = drawing(11)
    given.drawn = {}
    interrupted(given, 3)
    assert make_job(drawing(13)).run() == EXIT_DONE
    assert results(tmp_path / "run") == results(tmp_path / "whole")
    assert make_job(drawing(14), load=never, retry=True).run() == EXIT_DONE


def test_a_seed_that_was_given_is_not_taken_for_one_that_is_drawn(tmp_path: Path, data: Path) -> None:
    make_job(job_config(data, tmp_path / "run", decoding={"seed": 5})).run()
    before = results(tmp_path / "run")
    config = job_config(data, tmp_path / "run", decoding={"seed": 6})
    config.drawn = {"decoding.seed": 6}
    with pytest.raises(ConfigError, match=r"decoding\.seed 5 -> 6; .*on_mismatch=new_dir"):
        make_job(config, load=never).run()
    assert results(tmp_path / "run") == before
