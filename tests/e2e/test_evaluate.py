"""`mindbatch evaluate` in several processes."""

from pathlib import Path

import orjson
import pytest

from command_line import CommandLine

pytestmark = [pytest.mark.slow, pytest.mark.processes]

QUESTION = (
    "task.choices=choices",
    "data.template={{ question }}",
    "metrics=[acc,perplexity]",
    "runtime.num_threads=1",
)


def test_two_replicas_have_the_scores_of_one(tmp_path: Path) -> None:
    command = CommandLine(tmp_path)
    rows = [
        {"question": f"{a} + {b} =", "choices": [str(a + b), str(a)], "answer": 0, "reference": str(a + b)}
        for a in (2, 5)
        for b in (3, 4)
    ]
    data = tmp_path / "rows.jsonl"
    data.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    found = []
    for number in (1, 2):
        done = command.run(
            "evaluate",
            "model=tiny_gpt2",
            f"data.path={data}",
            f"output.dir={tmp_path / str(number)}",
            f"parallel.data_parallel={number}",
            "task.reference_column=reference",
            *QUESTION,
        )
        assert done.returncode == 0, done.stderr
        results = orjson.loads((tmp_path / str(number) / "results.json").read_bytes())
        found.append(results["columns"]["model"]["results"])
    assert found[0] == found[1]
    assert found[0]["acc,none"] > 0.5
