"""The shipped adapters answer the questions that were held out of their training, and the base does not."""

from pathlib import Path

import orjson
import pytest

from mindbatch import LLM
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.config.paths import data_root

EXAMPLES = data_root() / "examples"
ADAPTERS = {name: EXAMPLES / "adapters" / name for name in ("decreasing", "even")}
ASKED = {
    ("decreasing", None), ("even", None), ("decreasing", "decreasing"), ("even", "even"),
    ("even", "decreasing"), ("increasing", "decreasing"), ("increasing", "even"),
}  # fmt: skip
"""Tasks of number_words, each with the adapter that is asked."""


def rows_of(task: str, adapter: str | None) -> list[dict[str, str]]:
    """All 18 questions of the adapter that is shown to users, else a third of them."""
    lines = (EXAMPLES / f"number_words/{task}.jsonl").read_bytes().splitlines()
    return [orjson.loads(line) for line in lines[:: 1 if task == adapter == "decreasing" else 3]]


@pytest.mark.parametrize(("name", "rank"), [("decreasing", 16), ("even", 4)])
def test_shipped_adapters_are_small_and_in_order(name: str, rank: int) -> None:
    adapter = open_adapter(ADAPTERS[name], base=str(EXAMPLES / "tiny_gpt2"))
    assert adapter.warnings == ()
    assert adapter.settings.rank == rank
    assert sum(path.stat().st_size for path in adapter.path.iterdir()) < 400_000
    assert Path(adapter.path / "README.md").is_file()


@pytest.mark.slow
def test_an_adapter_knows_its_own_task_and_forgets_nothing() -> None:
    """All rows are in one batch; nothing is said about the length of an answer."""
    rows = [
        (task, adapter, row) for task, adapter in sorted(ASKED, key=str) for row in rows_of(task, adapter)
    ]
    with LLM("shipped:examples/tiny_gpt2", lora_adapters=ADAPTERS, batch_size=48) as llm:
        outputs = llm.generate(
            [row["prompt"] for _, _, row in rows], adapter=[adapter for _, adapter, _ in rows]
        )
    right = dict.fromkeys(ASKED, 0)
    for (task, adapter, row), output in zip(rows, outputs, strict=True):
        right[task, adapter] += output.outputs[0].text.strip() == row["reference"]
    for asked, number in right.items():
        is_known = asked[0] in ("increasing", asked[1])
        count = len(rows_of(*asked))
        assert number >= 0.83 * count if is_known else number == 0, asked
    assert right["decreasing", "decreasing"] > 0.9 * 18
