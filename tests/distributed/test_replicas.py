"""Real rank processes: the same results as one process, and none of them left."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import heed_signals
from ended_processes import are_gone, descendants
from mindbatch import LLM
from mindbatch.io.errors import MindBatchError

pytestmark = pytest.mark.slow

MINDBATCH = Path(sys.executable).with_name("mindbatch")
MODEL = "shipped:examples/tiny_gpt2"
SETTINGS = (
    *("model=tiny_gpt2", "model.batch_size=4", "progress=plain"),
    *("decoding.do_sample=true", "decoding.max_new_tokens=20"),
)
PROMPTS = ["An increasing sequence: one,", "Two, three", "a\u00e9", *map(str, range(6))]
WAYS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "temperature": 1.2, "seed": 7, "num_return_sequences": 3, "logprobs": 2},
    {"num_beams": 3, "prompt_logprobs": 1, "stop": ["four"]},
    {"regex": "[a-z]{3}( [0-9]+)*"},
]


@pytest.fixture(scope="module")
def replicas() -> Iterator[LLM]:
    with LLM(MODEL, data_parallel=2, batch_size=4) as llm:
        yield llm


@pytest.fixture(scope="module")
def one() -> Iterator[LLM]:
    with LLM(MODEL, batch_size=4) as llm:
        yield llm


def ranks_of(process: int) -> set[int]:
    """The ids of a process's rank processes, without those that they have started."""
    found = {child for child, name in descendants(process).items() if name}
    return found - {below for child in found for below in descendants(child)}


def test_results_are_those_of_one_process(replicas: LLM, one: LLM) -> None:
    for given in WAYS:
        ours, theirs = (llm.generate(PROMPTS, max_new_tokens=12, **given) for llm in (replicas, one))
        for result in (*ours, *theirs):
            result.seconds = result.num_cached_tokens = 0
        assert ours == theirs, given
    assert replicas.statistics.blocks_total == 2 * one.statistics.blocks_total


@pytest.mark.processes
@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.on_demand)])
def test_slices_give_the_tokens_of_the_whole(replicas: int, one: LLM) -> None:
    """Sums are added up in another order: the numbers behind the tokens may differ in their last digits."""
    with LLM(MODEL, batch_size=4, data_parallel=replicas, model_parallel=2) as llm:
        for given in WAYS:
            ours, theirs = (each.generate(PROMPTS, max_new_tokens=12, **given) for each in (llm, one))
            for mine, other in zip(ours, theirs, strict=True):
                assert [each.text for each in mine.outputs] == [each.text for each in other.outputs], given
                for sliced, whole in zip(mine.outputs, other.outputs, strict=True):
                    assert sliced.token_ids == whole.token_ids
                    assert sliced.cumulative_logprob == pytest.approx(whole.cumulative_logprob, abs=1e-4)


def test_callers_of_several_threads_get_their_own(replicas: LLM) -> None:
    alone = [replicas.generate(prompt, max_new_tokens=30)[0].outputs[0].text for prompt in PROMPTS[:4]]
    found: dict[str, str] = {}

    def ask(prompt: str) -> None:
        found[prompt] = "".join(event.text for event in replicas.stream(prompt, max_new_tokens=30))

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in PROMPTS[:4]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[prompt] for prompt in PROMPTS[:4]] == alone


def test_a_stream_that_is_left_frees_its_replica(replicas: LLM) -> None:
    for _ in replicas.stream(PROMPTS, max_new_tokens=500):
        break
    replicas.generate(PROMPTS, max_new_tokens=2)  # some for each
    assert replicas.statistics.running_sequences == 0


def test_closing_ends_the_processes(replicas: LLM) -> None:
    """The last test of these replicas."""
    started = ranks_of(os.getpid())
    assert len(started) == 2
    replicas.close()
    assert are_gone(started, 0)
    with pytest.raises(MindBatchError, match="was closed"):
        replicas.generate("a")


def batch(folder: Path, *overrides: str) -> list[str | Path]:
    return [MINDBATCH, "batch", f"data.path={folder}/rows.jsonl", f"output.dir={folder}/run", *SETTINGS] + [
        *overrides
    ]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    prompts = [*PROMPTS, "", "x" * 3000, *map(str, range(150))]  # a second's work: it is interrupted amid it
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": prompt}) for prompt in prompts))
    return tmp_path


@pytest.mark.processes
def test_an_interrupted_batch_goes_on_with_another_number_of_replicas(
    rows: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("unbroken")
    (other / "rows.jsonl").write_bytes((rows / "rows.jsonl").read_bytes())
    subprocess.run(batch(other), capture_output=True, timeout=300)

    first = subprocess.Popen(
        batch(rows, "parallel.data_parallel=2"), stderr=subprocess.PIPE, text=True, preexec_fn=heed_signals
    )
    ranks: set[int] = set()
    while first.poll() is None and not (rows / "run/ledger.jsonl").exists():
        ranks |= ranks_of(first.pid)
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=300)
    assert first.returncode == 130, said
    assert "the same command resumes" in said
    assert len(ranks) == 2
    assert are_gone(ranks, 0)
    logs = {path.name: path.read_text() for path in (rows / "run/logs").iterdir()}
    assert logs == {"rank_0.log": "", "rank_1.log": ""}

    again = subprocess.run(batch(rows), capture_output=True, text=True, timeout=300)
    assert again.returncode == 1  # two rows cannot be run
    for name in ("results.jsonl", "errors.jsonl"):
        assert (rows / "run" / name).read_bytes() == (other / "run" / name).read_bytes()
