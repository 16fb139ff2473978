"""`mindbatch compare` with the shipped model: every kind of strategy at once."""

import json
import re

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
    content = json.loads((folder / "comparison.json").read_bytes())
    by_name = {report["name"]: report for report in content["strategies"]}
    assert list(by_name) == STRATEGIES
    greedy = by_name["greedy"]
    assert greedy["prompts"][0]["outputs"][0]["text"].startswith(" two, three, four, five")
    for report in content["strategies"]:
        metrics, outputs = report["metrics"], [row["outputs"][0] for row in report["prompts"]]
        assert metrics["num_tokens"] == sum(len(output["token_ids"]) for output in outputs)
        assert metrics["tokens_per_second"] > 0
        assert 1 <= metrics["perplexity"] < 100
        assert 0 < metrics["distinct_2"] <= 1
        assert metrics["self_bleu"] is not None
    # Two prompts of a dozen tokens: the search has at least what greedy finds.
    for beam, alone in zip(by_name["beam4"]["prompts"], greedy["prompts"], strict=True):
        assert beam["outputs"][0]["logprob"] >= alone["outputs"][0]["logprob"] - 1e-3
    assert by_name["beam4"]["prompts"][0]["outputs"][0]["rank"] == 1
    assert by_name["sample_and_rank"]["prompts"][0]["outputs"][0]["score"] is not None
    lines = done.stdout.splitlines()
    (heading,) = (number for number, line in enumerate(lines) if line.startswith("strategy "))
    table = lines[heading + 2 :]
    assert [line.split()[0] for line in table[: len(STRATEGIES)]] == STRATEGIES
    assert [len(report["timings"]) for report in content["strategies"]] == [3] * len(STRATEGIES)
    page = (folder / "comparison.html").read_text(encoding="utf-8")
    assert "8 decoding strategies compared" in page
    assert not re.search(r"\b(src|href)\s*=|url\(|https?:", page)
