"""What ranks compile: what is requested, refused beforehand, and printed. MindSpore is played."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors_writer import safetensors_bytes

from mindbatch.ascend_simulation import process
from mindbatch.config.compose import compose_task
from mindbatch.engine.settings import EngineSettings
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED, CheckpointError, ConfigError
from mindbatch.tasks.compile import task as compilation
from mindbatch.tasks.compile.report import device_memory
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
KERNELS = {"AllReduce": 8, "PagedAttention": 3, "AddRmsNorm": 7, "MatMul": 13}
DECODE = {"kind": "decode", "tokens": 1}
REFUSED = {"operator": "Foo", "layer": "decoder.norm", "rule": "For 'Foo', not \033[2J"}


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return [f"model.checkpoint_name_or_path={tmp_path}"]


class Simulation:
    """Answers for each rank with the same reports, and keeps what it was told."""

    def __init__(self, *reports: dict[str, Any]) -> None:
        self.reports = reports
        self.job: dict[str, Any] = {}
        self.seconds = 0.0

    def __call__(
        self, function: object, job: str, *, seconds: float, verbose: bool
    ) -> Iterator[dict[str, Any]]:
        self.job, self.seconds = json.loads(job), seconds
        return ({"rank": rank, **report} for rank in self.job["ranks"] for report in self.reports)


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Simulation:
    played = Simulation(DECODE, {**DECODE, "seconds": 1.5, "kernels": KERNELS})
    monkeypatch.setattr(process, "simulate", played)
    return played


def run(words: list[str]) -> int:
    return compilation.run(compose_task(TASKS["compile"], words).finish())  # type: ignore[arg-type]


def faults(words: list[str]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        run(words)
    return caught.value.lines


@pytest.mark.needs("mindspore")
def test_the_page(given: list[str], simulation: Simulation, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*given, "parallel.model_parallel=2", "model.batch_size=2"]) == EXIT_DONE
    page = capsys.readouterr().out
    assert "llama compiled for Ascend, simulated: bfloat16\n" in page
    assert "data_parallel 1 x model_parallel 2 x pipeline_stage 1: 2 ranks\n" in page
    assert "layers 0-1, 4 of 5 were compiled and stand for all of them\n" in page
    assert "decode       1      1.5  3 PagedAttention, 7 AddRmsNorm, 8 AllReduce\n" in page
    assert "1 graphs compiled, 0 refused\n" in page
    assert ": fits 60.0 GiB, which would hold" in page


@pytest.mark.needs("mindspore")
def test_the_simulation_is_told_what_ranks_run(given: list[str], simulation: Simulation) -> None:
    words = ["parallel.model_parallel=4", "parallel.data_parallel=2", "ranks=all", "layers=all"]
    run([*given, *words, "layout.timeout=77"])
    job = simulation.job
    assert (job["ranks"], job["model_parallel"], job["pipeline_stage"]) == ([0, 1, 2, 3], 4, 1)
    assert (job["layers"], job["config"]) == ([[0, 1, 2, 3, 4]], CONFIG)
    assert simulation.seconds == 77
    assert job["settings"]["num_blocks"] == 16  # not the 8 GiB of the configuration
    run([*given, *words[:2], "ranks=[7,0]"])
    assert simulation.job["ranks"] == [7, 0]


@pytest.mark.needs("mindspore")
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


@pytest.mark.needs("mindspore")
def test_adapters_are_compiled_beside_the_model(
    given: list[str],
    simulation: Simulation,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = config("qwen3") | {"num_hidden_layers": 5}
    (tmp_path / "config.json").write_text(json.dumps(own))
    folder, (hidden, inner) = tmp_path / "law", (own["hidden_size"], own["intermediate_size"])
    arrays = {
        f"base_model.model.model.layers.{layer}.mlp.down_proj.lora_{half}.weight": np.ones(shape, np.float32)
        for layer in range(5)
        for half, shape in (("A", (4, inner)), ("B", (hidden, 4)))
    }
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(safetensors_bytes(arrays))
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["down_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    words = [*given, "parallel.model_parallel=2", "report=json"]
    adapters = f"lora.adapters={{law: {folder}, base: null}}"
    assert run([*words, adapters]) == EXIT_DONE
    memory = json.loads(capsys.readouterr().out)["ranks"][0]["memory"]
    assert memory["adapter_bytes"] == 2 * 2 * 5 * 4 * (
        inner // 2 + hidden
    )  # one slot, and zeros for the base
    assert simulation.job["lora"] == {"adapters": {"law": str(folder), "base": None}, "max_loaded": None}
    assert faults([*words, adapters, "lora.mode=merge"])[0].startswith("lora.mode: this task has no such key")
    refused = faults([*words, adapters, "model.provider=mindformers"])
    assert refused[0].startswith("lora.adapters: not beside a model of model.provider=mindformers on Ascend")
    (tmp_path / "config.json").write_text(json.dumps(own | {"num_hidden_layers": 4}))
    with pytest.raises(CheckpointError, match="lora.adapters.law: .*the model has no 'model.layers.4.mlp"):
        run([*words, adapters])


@pytest.mark.needs("mindspore")
def test_each_stage_is_named_and_has_the_bytes_of_its_layers(
    given: list[str], simulation: Simulation, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*given, "parallel.model_parallel=2", "parallel.pipeline_stage=3", "ranks=[0,3,5]"]
    words += ["parallel.device_map=[1,3,1]", "layers=all"]
    assert run([*words, "report=json"]) == EXIT_DONE
    job, found = simulation.job, json.loads(capsys.readouterr().out)
    assert (job["layers"], job["pipeline_stage"]) == ([[0], [1, 2, 3], [4]], 3)
    attention, mlp, norms = (8 + 2 * 4) * 8 * 64 + 64 * 64, 3 * 64 * 96, 2 * 64
    layer = attention // 2 + mlp // 2 + norms
    held = [each["memory"]["weight_bytes"] for each in found["ranks"]]
    assert held == [2 * (50 * 64 + layer), 2 * 3 * layer, 2 * (50 * 64 + 64 + layer)]
    assert [each["stage_layers"] for each in found["ranks"]] == [[0], [1, 2, 3], [4]]
    assert [each["tensor_rank"] for each in found["ranks"]] == [0, 1, 1]
    tokens = [each["memory"]["bytes_per_token"] for each in found["ranks"]]
    assert tokens == [2 * layers * 2 * (8 + 16) for layers in (1, 3, 1)]  # values are padded
    blocks = ((8 << 30) // (tokens[1] * 128) - 1) // 3  # of each engine: the largest cache has the budget
    assert {each["memory"]["cache_tokens"] for each in found["ranks"]} == {blocks * 3 * 128}
    run(words)
    page = capsys.readouterr().out
    assert "data_parallel 1 x model_parallel 2 x pipeline_stage 3: 6 ranks\n" in page
    assert "rank 3: stage 1 of 3, layers 1 to 3, tensor rank 1 of 2\nall 3 layers were compiled\n" in page


@pytest.mark.needs("mindspore")
def test_stages_have_a_sample_each(given: list[str], simulation: Simulation) -> None:
    run([*given, "parallel.pipeline_stage=2", "parallel.device_map=[1,4]", "ranks=all"])
    assert simulation.job["layers"] == [[0], [1, 2, 4]]
    assert simulation.job["ranks"] == [0, 1]


@pytest.mark.needs("mindspore")
def test_what_is_refused_fails_the_command(
    given: list[str], simulation: Simulation, capsys: pytest.CaptureFixture[str]
) -> None:
    simulation.reports = (DECODE, {**DECODE, "seconds": 0.2, **REFUSED})
    assert run(given) == EXIT_FAILED
    assert "refused: Foo in decoder.norm: For 'Foo', not \\x1b[2J\n" in capsys.readouterr().out
    assert run([*given, "report=json"]) == EXIT_FAILED
    (graph,) = json.loads(capsys.readouterr().out)["ranks"][0]["graphs"]
    assert (graph["operator"], graph["is_compiled"]) == ("Foo", False)


@pytest.mark.needs("mindspore")
def test_a_process_that_dies_ends_its_rank(
    given: list[str], simulation: Simulation, capsys: pytest.CaptureFixture[str]
) -> None:
    head = {"kind": "head", "tokens": 4}
    simulation.reports = (*simulation.reports, head, {"error": "rank 0: ended by signal 11"})
    assert run(given) == EXIT_FAILED
    page = capsys.readouterr().out
    assert "head         4      0.0  refused: an operator: the process ended over it" in page
    assert "1 graphs compiled, 1 refused\nno more graphs were tried: rank 0: ended by signal 11\n" in page


@pytest.mark.needs("mindspore")
def test_what_does_not_fit_fails_the_command(
    given: list[str], simulation: Simulation, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*given, "runtime.device_memory=5GiB"]) == EXIT_FAILED
    assert "does NOT fit 1.0 GiB" in capsys.readouterr().out


@pytest.mark.needs("mindspore")
def test_mistakes_are_found_before_anything_is_compiled(given: list[str]) -> None:
    words = [*given, "runtime.device_target=CPU", "runtime.device_memory=4GiB", "ranks=[0,0]"]
    words += ["parallel.device_map=[1,1]", "model.provider=mindformers", "parallel.pipeline_stage=3"]
    assert faults([*words, "layout.vocab_emb_dp=false", "runtime.cache_memory=much"]) == (
        "runtime.device_target=CPU: must be Ascend",
        "parallel.pipeline_stage=3: not with model.provider=mindformers, whose networks are not divided by "
        "layers; allowed: 1 with parallel.model_parallel, or model.provider=native",
        "parallel.device_map=[1, 1]: has 2 numbers; needed is one for each of parallel.pipeline_stage=3",
        "runtime.cache_memory=much: must be bytes, or a number with KB, MB, GB, TB (powers of 1000) or KiB, "
        "MiB, GiB, TiB (powers of 1024)",
        "runtime.device_memory=4GiB: must be above 4GiB, left to all but weights and cache",
        "ranks=[0, 0]: must be a rank of 0 to 2, a list of different ones, or all",
        "layout.vocab_emb_dp=false: has no effect without layout.dir; give it or remove it",
    )
    assert faults([*given, "parallel.pipeline_stage=6"]) == (
        "parallel.pipeline_stage=6: the model has 5 layers; allowed: 1 to 5",
    )
    assert any("does not divide" in line for line in faults([*given, "parallel.model_parallel=3"]))
    assert faults([*given, "model.dtype=float32"])[0].startswith("model.dtype=float32: not with")


@pytest.mark.needs("mindspore")
def test_the_layout_is_found_in_the_same_command(
    given: list[str], simulation: Simulation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*given, "parallel.model_parallel=2", f"layout.dir={tmp_path}/strategy"]
    assert run([*words, "report=json"]) == EXIT_DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["layout"]["kind"]) == ("compilation", "layout")
    assert [path.name for path in (tmp_path / "strategy").iterdir()] == ["ckpt_strategy_rank_0.ckpt"]
    assert run(words) == EXIT_DONE
    page = capsys.readouterr().out
    assert page.index("llama compiled for Ascend") < page.index("layout of llama, elements bfloat16")
    assert f"strategy file: {tmp_path}/strategy/ckpt_strategy_rank_0.ckpt\n" in page


@pytest.mark.needs("mindspore")
def test_a_layout_that_cannot_be_is_refused_before_anything_is_compiled(
    given: list[str], simulation: Simulation, tmp_path: Path
) -> None:
    (tmp_path / "strategy").mkdir()
    (tmp_path / "strategy/notes.txt").write_text("")
    (line,) = faults([*given, f"layout.dir={tmp_path}/strategy"])
    assert "holds notes.txt" in line
    words = [*given, "parallel.pipeline_stage=2", "parallel.device_map=[1,4]", f"layout.dir={tmp_path}/new"]
    assert faults(words) == (
        "parallel.device_map=[1, 4]: strategy files are of even stages; remove it, or layout.dir",
    )
    for setting in ("layout.vocab_emb_dp=false", "layout.qkv_concat=true"):
        effect = "has no effect with model.provider=native; set model.provider=mindformers or remove it"
        line = f"{setting}: {effect}"
        assert faults([*given, f"layout.dir={tmp_path}/new", setting]) == (line,)
    assert simulation.job == {}


@pytest.mark.needs("mindspore")
def test_a_model_of_mindformers_tells_its_weights_itself(
    tmp_path: Path, simulation: Simulation, capsys: pytest.CaptureFixture[str]
) -> None:
    content = config("deepseek_v3", num_hidden_layers=9, first_k_dense_replace=2)
    (tmp_path / "config.json").write_text(json.dumps(content))
    simulation.reports = ({"layer_bytes": [10, 100], "other_bytes": 5}, *simulation.reports)
    words = [f"model.checkpoint_name_or_path={tmp_path}", "model.provider=mindformers"]
    assert run([*words, "report=json", "parallel.model_parallel=2"]) == EXIT_DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["num_layers"], found["compiled_layers"]) == (9, [0, 2])
    assert found["ranks"][0]["memory"]["weight_bytes"] == 5 + 2 * 10 + 7 * 100
    assert simulation.job["network"] == "mindformers"
    assert simulation.job["config"] == content | {"num_hidden_layers": 2, "first_k_dense_replace": 1}


def test_a_block_of_the_cache_is_for_padding() -> None:
    settings = EngineSettings(1, 64, block_size=4, num_blocks=9)
    memory = device_memory(1000, weights=200, adapters=0, bytes_per_token=20, settings=settings)
    assert (memory["cache_bytes"], memory["cache_tokens"], memory["most_cache_tokens"]) == (800, 36, 36)
    assert memory["fits"]
    assert not device_memory(999, 200, 0, 20, settings)["fits"]
