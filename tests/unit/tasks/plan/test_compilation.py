"""The plan of what ranks compile: what is asked for, refused beforehand, and printed. MindSpore is played."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mindbatch.backends.simulation.process import SimulationLimits
from mindbatch.config.compose import compose_task
from mindbatch.errors import EXIT_DONE, EXIT_FAILED, ConfigError
from mindbatch.tasks.plan import compilation
from mindbatch.tasks.plan import task as plan
from mindbatch.tasks.registry import TASKS
from mindformers_configs import config

CONFIG = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
KERNELS = {"PagedAttention": 3, "AddRmsNorm": 7, "MatMul": 13}
DECODE = {"kind": "decode", "tokens": 1}
REFUSED = {"operator": "Foo", "layer": "decoder.norm", "rule": "For 'Foo', not \033[2J"}


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return [f"model.checkpoint_name_or_path={tmp_path}", "runtime=ascend", "compile=true"]


class Simulation:
    """Answers for each rank with the same reports, and keeps what it was told."""

    def __init__(self, *reports: dict[str, Any]) -> None:
        self.reports = reports
        self.job: dict[str, Any] = {}
        self.seconds = 0.0

    def __call__(
        self, function: object, job: str, *, limits: SimulationLimits, verbose: bool
    ) -> Iterator[dict[str, Any]]:
        self.job, self.seconds = json.loads(job), limits.seconds
        return ({"rank": rank, **report} for rank in self.job["ranks"] for report in self.reports)


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Simulation:
    played = Simulation(DECODE, {**DECODE, "seconds": 1.5, "kernels": KERNELS})
    monkeypatch.setattr(compilation, "simulate", played)
    return played


def run(words: list[str]) -> int:
    return plan.run(compose_task(TASKS["plan"], words).finish())  # type: ignore[arg-type]


def faults(words: list[str]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        run(words)
    return caught.value.faults


def test_the_page(given: list[str], simulation: Simulation, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*given, "parallel.model_parallel=2", "model.batch_size=2"]) == EXIT_DONE
    page = capsys.readouterr().out
    assert "llama compiled for Ascend, simulated: bfloat16\n" in page
    assert "data_parallel 1 x model_parallel 2: 2 ranks\n" in page
    assert "layers 0-1, 4 of 5 were compiled and stand for all of them\n" in page
    assert "decode       1      1.5  3 PagedAttention, 7 AddRmsNorm\n" in page
    assert "1 graphs compiled, 0 refused\n" in page
    assert ": fits 60.0 GiB, which would hold" in page


def test_the_simulation_is_told_what_ranks_run(given: list[str], simulation: Simulation) -> None:
    words = ["parallel.model_parallel=4", "parallel.data_parallel=2", "ranks=all", "layers=all"]
    run([*given, *words, "layout.timeout=77"])
    job = simulation.job
    assert (job["ranks"], job["data_parallel"], job["model_parallel"]) == ([0, 1, 2, 3], 2, 4)
    assert (job["layers"], job["config"]) == ([0, 1, 2, 3, 4], CONFIG)
    assert simulation.seconds == 77
    assert job["settings"]["num_blocks"] == 16  # not the 8 GiB of the configuration
    run([*given, *words[:2], "ranks=[7,0]"])
    assert simulation.job["ranks"] == [7, 0]


def test_bytes_are_those_of_a_rank(
    given: list[str], simulation: Simulation, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {}
    for words in (["parallel.model_parallel=1"], ["parallel.model_parallel=4"]):
        run([*given, *words, "report=json"])
        sizes[words[0][-1]] = json.loads(capsys.readouterr().out)["ranks"][0]["memory"]
    attention, mlp, norms = (8 + 2 * 4) * 8 * 64 + 64 * 64, 3 * 64 * 96, 2 * 64
    assert sizes["1"]["weight_bytes"] == 2 * (2 * 100 * 64 + 64 + 5 * (attention + mlp + norms))
    assert sizes["4"]["weight_bytes"] == 2 * (2 * 25 * 64 + 64 + 5 * (attention // 4 + mlp // 4 + norms))
    assert sizes["1"]["bytes_per_token"] == 4 * sizes["4"]["bytes_per_token"]
    assert sizes["1"]["fits"]


def test_what_is_refused_fails_the_command(
    given: list[str], simulation: Simulation, capsys: pytest.CaptureFixture[str]
) -> None:
    simulation.reports = (DECODE, {**DECODE, "seconds": 0.2, **REFUSED})
    assert run(given) == EXIT_FAILED
    assert "refused: Foo in decoder.norm: For 'Foo', not \\x1b[2J\n" in capsys.readouterr().out
    assert run([*given, "report=json"]) == EXIT_FAILED
    (graph,) = json.loads(capsys.readouterr().out)["ranks"][0]["graphs"]
    assert (graph["operator"], graph["is_compiled"]) == ("Foo", False)


def test_a_process_that_dies_ends_its_rank(
    given: list[str], simulation: Simulation, capsys: pytest.CaptureFixture[str]
) -> None:
    head = {"kind": "head", "tokens": 4}
    simulation.reports = (*simulation.reports, head, {"error": "rank 0: ended by signal 11"})
    assert run(given) == EXIT_FAILED
    page = capsys.readouterr().out
    assert "head         4      0.0  refused: an operator: the process ended over it" in page
    assert "1 graphs compiled, 1 refused\nno more graphs were tried: rank 0: ended by signal 11\n" in page


def test_a_graph_that_there_was_already_is_left_out(
    given: list[str], simulation: Simulation, capsys: pytest.CaptureFixture[str]
) -> None:
    again = {"kind": "prefill", "tokens": 2}
    simulation.reports = (*simulation.reports, again, {**again, "seconds": 0.1, "kernels": {}})
    assert run(given) == EXIT_DONE
    assert "prefill" not in capsys.readouterr().out


def test_what_does_not_fit_fails_the_command(
    given: list[str], simulation: Simulation, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*given, "runtime.device_memory=5GiB"]) == EXIT_FAILED
    assert "does NOT fit 1.0 GiB" in capsys.readouterr().out


def test_mistakes_are_found_before_anything_is_compiled(given: list[str]) -> None:
    words = [*given, "runtime.device_target=CPU", "runtime.device_memory=4GiB", "ranks=[0,0]"]
    assert faults([*words, "parallel.pipeline_stage=2", "layout.dir=s", "runtime.cache_memory=much"]) == (
        "layout.dir=s: has no effect with compile=true; remove it",
        "runtime.device_target=CPU: compile=true compiles for Ascend; set runtime.device_target=Ascend, or "
        "runtime=ascend for larger blocks and cache, too",
        "parallel.pipeline_stage=2: only 1 with compile=true, for models run in one stage in this version",
        "runtime.cache_memory=much: must be bytes, or a number with KB, MB, GB, TB (powers of 1000) or KiB, "
        "MiB, GiB, TiB (powers of 1024)",
        "runtime.device_memory=4GiB: must be above 4GiB, left to all but weights and cache",
        "ranks=[0, 0]: must be a rank of 0 to 0, a list of different ones, or all",
    )
    assert any("does not divide" in line for line in faults([*given, "parallel.model_parallel=3"]))
    assert faults([*given, "model.dtype=float32"])[0].startswith("model.dtype=float32: not with")


def test_its_keys_have_no_effect_without_it(given: list[str]) -> None:
    words = [given[0], "parallel.model_parallel=2", "ranks=all", "layers=all", "runtime.device_memory=32GiB"]
    assert {*faults(words)} == {
        "ranks=all: only with compile=true",
        "layers=all: only with compile=true",
        "runtime.device_memory=32GiB: only with compile=true",
    }


def test_a_legacy_model_of_mindformers_is_refused_with_what_is_done(given: list[str]) -> None:
    (line,) = faults([*given, "model.provider=mindformers"])
    assert line.startswith("compile=true: not for a llama with model.provider=mindformers, a legacy model")


def test_a_model_of_mindformers_tells_its_weights_itself(
    tmp_path: Path, simulation: Simulation, capsys: pytest.CaptureFixture[str]
) -> None:
    content = config("deepseek_v3", num_hidden_layers=9, first_k_dense_replace=2)
    (tmp_path / "config.json").write_text(json.dumps(content))
    simulation.reports = ({"layer_bytes": [10, 100], "other_bytes": 5}, *simulation.reports)
    words = [f"model.checkpoint_name_or_path={tmp_path}", "model.provider=mindformers", "runtime=ascend"]
    assert run([*words, "compile=true", "report=json", "parallel.model_parallel=2"]) == EXIT_DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["num_layers"], found["compiled_layers"]) == (9, [0, 2])
    assert found["ranks"][0]["memory"]["weight_bytes"] == 5 + 2 * 10 + 7 * 100
    assert simulation.job["provider"] == "mindformers"
    assert simulation.job["config"] == content | {"num_hidden_layers": 2, "first_k_dense_replace": 1}
