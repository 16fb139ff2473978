"""`mindbatch compare` with every kind of strategy at once, and `evaluate` in several processes."""

import json
import re
from pathlib import Path

import orjson
import pytest

from command_line import CommandLine

pytestmark = pytest.mark.slow

STRATEGIES = [
    "greedy",
    "beam4",
    "group_beam",
    "top_k",
    "top_p",
    "temperature",
    "contrastive",
    "sample_and_rank",
]


def test_all_strategies_over_two_prompts(command: CommandLine) -> None:
    done = command.run(
        "compare",
        "model=tiny_gpt2",
        'prompts=["An increasing sequence: one,", "A decreasing sequence: twenty,"]',
        f"decoding=[{','.join(STRATEGIES)}]",
        "decoding.max_new_tokens=12",
        "output.dir=compared",
        leaves=["compared"],
    )
    assert done.returncode == 0, done.stderr
    folder = command.here / "compared"
    columns = json.loads((folder / "results.json").read_bytes())["columns"]
    assert list(columns) == STRATEGIES
    texts = {}
    for name, column in columns.items():
        lines = (folder / column["folder"] / "samples_comparison.jsonl").read_text().splitlines()
        samples = [json.loads(line) for line in lines]
        texts[name] = [sample["outputs"][0] | {"text": sample["resps"][0][0]} for sample in samples]
        scores = column["results"]
        assert column["generated_tokens"] == sum(len(output["token_ids"]) for output in texts[name])
        assert min(column["tokens_per_second"]) > 0
        assert len(column["tokens_per_second"]) == 3
        assert 1 <= scores["output_perplexity,none"] < 100
        assert 0 < scores["distinct_2,none"] <= 1
        assert scores["self_bleu,none"] is not None
    assert texts["greedy"][0]["text"].startswith(" two, three, four, five")
    # Two prompts of a dozen tokens: the search has at least what greedy finds.
    for beam, alone in zip(texts["beam4"], texts["greedy"], strict=True):
        assert beam["logprob"] >= alone["logprob"] - 1e-3
    assert texts["beam4"][0]["rank"] == 1
    assert texts["sample_and_rank"][0]["score"] is not None
    lines = done.stdout.splitlines()
    (heading,) = (number for number, line in enumerate(lines) if "output_perplexity" in line)
    table = lines[heading + 2 :]
    assert [line.split()[0] for line in table[: len(STRATEGIES)]] == STRATEGIES
    page = (folder / "comparison.html").read_text(encoding="utf-8")
    assert "comparison: 8 columns evaluated" in page
    assert not re.search(r"\b(src|href)\s*=|url\(|https?:", page)


QUESTION = (
    "task.choices=choices",
    "data.template={{ question }}",
    "metrics=[acc,perplexity]",
    "runtime.num_threads=1",
)


@pytest.mark.processes
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
