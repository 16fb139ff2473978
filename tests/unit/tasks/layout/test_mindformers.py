"""MindSpore's layout: models it covers, what is printed and written. MindSpore is played."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mindbatch.architecture.architecture import Architecture
from mindbatch.ascend_simulation import process
from mindbatch.checkpoint.strategy.strategy import OperatorStrategy, Strategy, TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import strategy_bytes
from mindbatch.config.compose import compose_task
from mindbatch.io.errors import ConfigError
from mindbatch.model_spec.registry import describe
from mindbatch.tasks.compile import task as compilation
from mindbatch.tasks.layout import mindformers
from mindbatch.tasks.layout import task as layout
from mindbatch.tasks.layout.mindformers import InferredLayout, LayoutJob, llama_options, parameter_json
from mindbatch.tasks.registry import TASKS

CONFIG = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "intermediate_size": 96,
}
COLUMNS, WHOLE = TensorLayout("wq", (2,), (0, -1)), TensorLayout("norm", (2,), (-1,))


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What every command has; it runs in an empty folder."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return ["model.provider=mindformers", f"model.checkpoint_name_or_path={tmp_path}/model"]


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[LayoutJob]:
    """The jobs that MindSpore would have been given."""
    found: list[LayoutJob] = []

    def answer(orders: list[LayoutJob], timeout: float, *, verbose: bool) -> list[InferredLayout]:
        (job,) = orders
        found.append(job)
        layouts = (COLUMNS, WHOLE) if job.model_parallel == 2 else (WHOLE,)
        if len(found) % 2 == 0:
            layouts = layouts[::-1]
        files = {
            f"ckpt_strategy_rank_{rank}.ckpt": strategy_bytes(
                Strategy(layouts, (OperatorStrategy("op", stage),))
            )
            for stage, rank in enumerate(job.leaders)
        }
        parameters = (parameter_json(0, (64, 32), COLUMNS), parameter_json(0, (64,), WHOLE))
        return [InferredLayout(parameters, files, ((1, "tied"),) if job.pipeline_stage > 1 else ())]

    monkeypatch.setattr(mindformers, "infer_layouts", answer)
    return found


def run(words: list[str]) -> int:
    return layout.run(compose_task(TASKS["layout"], words).finish())  # type: ignore[arg-type]


def faults(words: list[str]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        run(words)
    return caught.value.lines


@pytest.mark.needs("mindformers")
def test_the_page_has_every_parameter(
    given: list[str], jobs: list[LayoutJob], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*given, "parallel.model_parallel=2", "parallel.data_parallel=2"]) == 0
    page = capsys.readouterr().out
    assert "data_parallel 2 x model_parallel 2 x pipeline_stage 1: 4 ranks" in page
    assert "    0  wq         [64, 32]  [32, 32]   dimension 0 into 2" in page
    assert "    0  norm       [64]      [64]       whole" in page
    assert "bfloat16 with flash attention and without a cache: MindFormers cannot cut" in page
    assert "stage 0: 2 parameters; a rank holds 1,088 of 2,112 elements" in page
    assert [*Path().iterdir()] == []
    assert (jobs[0].num_ranks, jobs[0].leaders, jobs[0].vocab_emb_dp) == (4, [0], True)
    assert (jobs[0].model["num_heads"], jobs[0].model["batch_size"]) == (8, 2)


@pytest.mark.needs("mindformers")
@pytest.mark.parametrize("is_terminal", [False, True])
def test_who_waits_at_a_terminal_is_told_so(
    is_terminal: bool,
    given: list[str],
    jobs: list[LayoutJob],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    assert run([*given, "parallel.model_parallel=2"]) == 0
    assert ("MindSpore works out the layout of" in capsys.readouterr().err) == is_terminal


@pytest.mark.needs("mindformers")
def test_one_copy_is_compiled_with_its_cache(
    given: list[str], jobs: list[LayoutJob], capsys: pytest.CaptureFixture[str]
) -> None:
    run([*given, "parallel.model_parallel=2"])
    assert "with flash attention and a paged cache\n" in capsys.readouterr().out
    assert jobs[0].as_json()["use_past"]


@pytest.mark.needs("mindformers")
def test_beside_what_is_compiled_the_ends_are_cut_as_there(
    given: list[str],
    tmp_path: Path,
    jobs: list[LayoutJob],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where nothing else is asked for."""
    (tmp_path / "model/config.json").write_text(
        json.dumps(CONFIG | {"model_type": "qwen2", "num_key_value_heads": 8})
    )
    monkeypatch.setattr(process, "simulate", lambda *args, **options: [])
    words = [*given, "layout.dir=s", "parallel.model_parallel=2"]
    for more, is_whole in ([], False), (["layout.vocab_emb_dp=true", "layout.replace=true"], True):
        compilation.run(compose_task(TASKS["compile"], [*words, *more]).finish())  # type: ignore[arg-type]
        assert jobs[-1].vocab_emb_dp == is_whole
        assert ("embedding and head are whole in these files" in capsys.readouterr().out) == is_whole


@pytest.mark.needs("mindformers")
def test_what_a_stage_borrows_is_noted(
    given: list[str], jobs: list[LayoutJob], capsys: pytest.CaptureFixture[str]
) -> None:
    run([*given, "parallel.pipeline_stage=2"])
    assert "note: stage 1 uses tied too" in capsys.readouterr().out


@pytest.mark.needs("mindformers")
@pytest.mark.usefixtures("jobs")
def test_a_strategy_is_known_in_any_order_and_another_is_replaced_only_when_asked_for(
    given: list[str],
) -> None:
    words = [*given, "layout.dir=s", "parallel.model_parallel=2"]
    run(words)
    before = Path("s/ckpt_strategy_rank_0.ckpt").read_bytes()
    assert run(words) == 0
    assert Path("s/ckpt_strategy_rank_0.ckpt").read_bytes() == before
    line = "s/ckpt_strategy_rank_0.ckpt: holds something else; layout.replace=true writes over it"
    assert faults(words[:-1]) == (line,)
    assert Path("s/ckpt_strategy_rank_0.ckpt").read_bytes() == before
    assert run([*words[:-1], "layout.replace=true"]) == 0
    assert Path("s/ckpt_strategy_rank_0.ckpt").read_bytes() != before


@pytest.mark.needs("mindformers")
def test_options_without_effect_are_refused(given: list[str]) -> None:
    words = ["decoding=top_p", "data.path=rows.jsonl", "model.batch_size=3", "layout.replace=true"]
    assert faults([*given, *words]) == (
        "decoding=top_p: this task takes no option of decoding",
        "data.path: unknown key",
        "model.batch_size: this task has no such key",
        "layout.replace=true: has no effect without layout.dir; give layout.dir or remove it",
    )


def test_options_of_mindspores_compiler_need_it(given: list[str]) -> None:
    words = [given[1], "layout.dir=s", "layout.vocab_emb_dp=false", "layout.timeout=5"]
    effect = "has no effect with model.provider=native; set model.provider=mindformers or remove it"
    assert faults(words) == (f"layout.vocab_emb_dp=false: {effect}", f"layout.timeout=5: {effect}")


@pytest.mark.needs("mindformers")
@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["parallel.model_parallel=13"], "parallel.model_parallel=13: must divide attention heads, 8"),
        (["parallel.pipeline_stage=3"], "parallel.pipeline_stage=3: must be at most 2, the model's layers"),
        (["parallel.data_parallel=8193"], "parallel: 8193 ranks; at most 8192"),
    ],
)
def test_ways_that_cannot_be(given: list[str], words: list[str], fault: str) -> None:
    assert any(fault in line for line in faults([*given, *words]))


LLAMA = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
}


def arch(**changes: Any) -> Architecture:
    return describe(LLAMA | changes)


def option_faults(described: Architecture, ways: int = 1) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        llama_options(described, 1, ways)
    return [fault.removeprefix("model.provider=mindformers: ") for fault in caught.value.lines]


def test_a_llama_keeps_its_sizes() -> None:
    options = llama_options(arch(tie_word_embeddings=True), 2, 4)
    assert options == {
        "batch_size": 2,
        "seq_length": 32,
        "hidden_size": 64,
        "num_layers": 3,
        "num_heads": 8,
        "n_kv_heads": 4,
        "intermediate_size": 96,
        "vocab_size": 100,
        "qkv_has_bias": False,
        "attn_proj_has_bias": False,
        "qkv_concat": False,
        "tie_word_embeddings": True,
    }


def test_everything_it_has_not_is_named_at_once() -> None:
    found = option_faults(arch(mlp_bias=True, hidden_act="relu", head_dim=16))
    assert found == [
        "this llama model has mlp_bias=true, which MindFormers' Llama has not",
        "this llama model has hidden_act=relu; MindFormers' Llama has silu",
        "head_dim=16: MindFormers' Llama has hidden_size=64 divided by the 8 heads",
    ]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"model_type": "qwen3", "head_dim": 8}, "norms of queries and keys"),
        ({"model_type": "mistral", "sliding_window": 4}, "sliding windows"),
    ],
)
def test_relatives_that_differ_are_refused(changes: dict[str, Any], fault: str) -> None:
    (found,) = option_faults(arch(**changes))
    assert fault in found


def test_another_family_is_refused() -> None:
    gpt2 = describe({"model_type": "gpt2", "vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 2})
    assert option_faults(gpt2) == ["a gpt2 model is no Llama; allowed are llama, mistral and qwen2"]
