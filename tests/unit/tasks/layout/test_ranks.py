"""`mindbatch layout`, and `plan` over ranks: the table, its JSON, the strategy files, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindbatch.checkpoint.placement.placements import placements
from mindbatch.checkpoint.placement.regions import Placement, single_segment, whole_placements
from mindbatch.checkpoint.strategy.placements import strategy_placements
from mindbatch.checkpoint.strategy.strategy_file import read_strategy
from mindbatch.config.compose import compose_task
from mindbatch.io.errors import MindBatchError
from mindbatch.model_spec.registry import describe, tensor_specs
from mindbatch.tasks.layout.ranks import layout_page, rank_sums, tensor_json
from mindbatch.tasks.registry import TASKS
from reshard_models import LLAMA, MODELS, source_shapes_of, write_model, write_tensors

EVEN = {**LLAMA, "vocab_size": 64, "torch_dtype": "bfloat16"}
CAPTURE = pytest.CaptureFixture[str]


def write_config(folder: Path, config: dict[str, Any] = EVEN) -> str:
    """A folder without weights; the word that names it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return f"model.checkpoint_name_or_path={folder}"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Llama of 3 layers, 8 heads, 2 key/value heads; the command runs in an empty folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return write_config(tmp_path / "model")


def run(*words: str) -> int:
    task = TASKS["plan" if any(word.startswith("data.path=") for word in words) else "layout"]
    return task.run(compose_task(task, list(words)).finish())


def faults(*words: str) -> tuple[str, ...]:
    with pytest.raises(MindBatchError) as caught:
        run(*words)
    return caught.value.lines


def as_json(capsys: CAPTURE, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run(*words, "report=json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_page_of_a_folder_without_weights(model: str, capsys: CAPTURE) -> None:
    words = ["parallel.model_parallel=4", "parallel.pipeline_stage=2", "parallel.data_parallel=2"]
    assert run(model, *words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "layout of llama, elements bfloat16, by torch_dtype of config.json; no weights are there",
        "data_parallel 2 x model_parallel 4 x pipeline_stage 2: 16 ranks",
        "stage 0: ranks 0-7, layers 0-1",
        "stage 1: ranks 8-15, layers 2",
    ]
    cells = {line.split("  ")[0]: [cell.strip() for cell in line.split("  ") if cell] for line in lines[5:]}
    layers = cells["model.layers.[0-2].self_attn.k_proj.weight"]
    assert layers[1:4] == ["[8, 32]", "dimension 0 in 2, each 4 times", "0-15, by stage"]
    assert layers[4:] == ["[4, 32]", "256", "6,144"]
    assert cells["lm_head.weight"][3:5] == ["8-15", "[16, 32]"]
    assert lines[-1] == "layout.dir=FOLDER keeps MindSpore's strategy files"
    assert [*Path().iterdir()] == []


def test_json_has_every_tensor_of_every_rank(model: str, capsys: CAPTURE) -> None:
    found = as_json(capsys, model, "parallel.model_parallel=4", "parallel.data_parallel=2")
    assert (found["kind"], found["ranks"], found["strategy_files"]) == ("layout", 8, [])
    tensors = {tensor["name"]: tensor for tensor in found["tensors"]}
    assert tensors.keys() == source_shapes_of(EVEN).keys()
    key = tensors["model.layers.2.self_attn.k_proj.weight"]
    assert key | {"shares": None} == {
        "name": "model.layers.2.self_attn.k_proj.weight",
        "dtype": "BF16",
        "shape": [8, 32],
        "bytes": 512,
        "cut": "dimension 0 in 2, each 4 times",
        "shares": None,
    }
    assert key["shares"] == [
        {
            "ranks": ranks,
            "shape": [4, 32],
            "bytes": 256,
            "pieces": [{"local": [[0, 4], [0, 32]], "whole": [[low, low + 4], [0, 32]]}],
            "padding": [],
        }
        for ranks, low in (([0, 1, 4, 5], 0), ([2, 3, 6, 7], 4))
    ]
    for rank, sums in enumerate(found["rank_sums"]):
        held = [each for tensor in found["tensors"] for each in tensor["shares"] if rank in each["ranks"]]
        nbytes = sum(each["bytes"] for each in held)
        assert sums == {"rank": rank, "stage": 0, "tensors": len(held), "bytes": nbytes}


def test_padding_is_told(tmp_path: Path, model: str, capsys: CAPTURE) -> None:
    odd = write_config(tmp_path / "odd", {**EVEN, "vocab_size": 67})
    found = as_json(capsys, odd, "parallel.model_parallel=2")
    head = next(tensor for tensor in found["tensors"] if tensor["name"] == "lm_head.weight")
    assert head["cut"] == "dimension 0 in 2, padded to 68"
    assert [share["padding"] for share in head["shares"]] == [[], [[[33, 34], [0, 32]]]]
    assert (head["bytes"], [share["bytes"] for share in head["shares"]]) == (67 * 64, [34 * 64] * 2)


def test_weights_say_their_own_dtype_and_names(tmp_path: Path, model: str, capsys: CAPTURE) -> None:
    folder = write_model(tmp_path / "weights", EVEN, "F16")
    words = [f"model.checkpoint_name_or_path={folder}", "parallel.model_parallel=2"]
    found = as_json(capsys, *words)
    assert found["dtype"] == "float16, as the weights are"
    assert {tensor["dtype"] for tensor in found["tensors"]} == {"F16"}
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert all(fault.startswith(str(weights)) for fault in faults(*words))


def test_a_base_model_keeps_its_bare_names(tmp_path: Path, model: str, capsys: CAPTURE) -> None:
    config = MODELS["gpt2"]
    given = write_config(tmp_path / "bare", config)
    arrays = {
        name.removeprefix("transformer."): np.zeros(shape, np.float32)
        for name, shape in source_shapes_of(config).items()
    }
    write_tensors(tmp_path / "bare/model.safetensors", arrays, "F32")
    found = as_json(capsys, given, "layout.dir=s")
    assert {tensor["name"] for tensor in found["tensors"]} == arrays.keys()
    assert {layout.name for layout in read_strategy("s").layouts} == arrays.keys()
    (tmp_path / "bare/model.safetensors").unlink()
    del arrays["wpe.weight"]
    write_tensors(tmp_path / "bare/model.safetensors", arrays, "F32")
    (fault,) = faults(given, "layout.dir=s")
    assert "tensor 'wpe.weight' is missing" in fault


def test_strategy_files_are_written_one_a_stage(model: str, capsys: CAPTURE) -> None:
    words = [model, "parallel.model_parallel=4", "parallel.pipeline_stage=3", "layout.dir=deep/er"]
    found = as_json(capsys, *words)
    assert found["strategy_files"] == [f"deep/er/ckpt_strategy_rank_{rank}.ckpt" for rank in (0, 4, 8)]
    specs = tensor_specs(describe(EVEN))
    strategy = read_strategy("deep/er")
    assert strategy_placements(strategy, source_shapes_of(EVEN)) == placements(specs, 4, 3)
    before = Path("deep/er/ckpt_strategy_rank_4.ckpt").stat().st_mtime_ns
    assert run(*words) == 0
    assert Path("deep/er/ckpt_strategy_rank_4.ckpt").stat().st_mtime_ns == before
    assert "merge_pipeline_strategys" in capsys.readouterr().out


def test_other_files_are_not_joined_nor_replaced_unasked(model: str) -> None:
    run(model, "parallel.model_parallel=2", "layout.dir=s")
    before = Path("s/ckpt_strategy_rank_0.ckpt").read_bytes()
    line = "s/ckpt_strategy_rank_0.ckpt: holds something else; layout.replace=true writes over it"
    assert faults(model, "parallel.model_parallel=4", "layout.dir=s") == (line,)
    assert Path("s/ckpt_strategy_rank_0.ckpt").read_bytes() == before
    assert run(model, "parallel.model_parallel=4", "layout.dir=s", "layout.replace=true") == 0
    assert read_strategy("s").num_ranks == 4
    Path("s/notes.txt").touch()
    (fault,) = faults(model, "parallel.model_parallel=4", "layout.dir=s")
    assert fault.startswith("layout.dir=s: holds notes.txt, which is no strategy file of this layout")


def test_what_a_strategy_cannot_say_is_refused_with_what_it_can(tmp_path: Path, model: str) -> None:
    odd = write_config(tmp_path / "odd", {**EVEN, "vocab_size": 66})
    (fault,) = faults(odd, "parallel.model_parallel=4", "layout.dir=s")
    assert fault == (
        "layout.dir: tensors 'model.embed_tokens.weight', 'lm_head.weight': shape [66, 32] is padded with "
        "zeros to be cut evenly; a strategy knows no padding; allowed with layout.dir: "
        "parallel.model_parallel=1, 2; without it there is the table"
    )
    fused = write_config(tmp_path / "fused", MODELS["gpt2"])
    given = [fused, "parallel.model_parallel=2", "parallel.pipeline_stage=2"]
    assert run(*given) == 0
    pieces, padding = sorted(faults(*given, "layout.dir=s"), key=lambda line: "padded" in line)
    assert "'transformer.h.0.attn.c_attn.weight'" in pieces
    assert "3 regions on each rank" in pieces
    assert "'transformer.wte.weight'" in padding
    assert padding.endswith("parallel.model_parallel=1; without it there is the table")
    assert not Path("s").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["parallel.model_parallel=3", "parallel.pipeline_stage=4"],
            [
                "parallel.model_parallel=3: does not divide the 8 heads of "
                "model.layers.0.self_attn.q_proj.weight, the 2 heads of "
                "model.layers.0.self_attn.k_proj.weight; allowed for this model: 1, 2, 4, 8",
                "parallel.pipeline_stage=4: the model has 3 layers; allowed: 1 to 3",
            ],
        ),
        (
            ["parallel.data_parallel=8193"],
            [
                "parallel: 8193 ranks; at most 8192. Copies of the model (parallel.data_parallel) hold the "
                "same slices: fewer of them say the same"
            ],
        ),
        (
            ["parallel.model_parallel=2", "decoding.top_k=3", "rate=2.0", "layout.replace=true"],
            [
                "decoding.top_k: this task has no such key",
                "rate: unknown key",
                "layout.replace=true: has no effect without layout.dir; give layout.dir or remove it",
            ],
        ),
        (["parallel.model_parallel=-2"], ["parallel.model_parallel=-2: must be a whole number, at least 1"]),
    ],
)
def test_what_cannot_be_planned(model: str, words: list[str], expected: list[str]) -> None:
    found = faults(model, *words)
    assert all(any(line.startswith(start) for line in found) for start in expected), found


def test_a_dtype_that_nobody_knows_is_refused(tmp_path: Path, model: str) -> None:
    odd = write_config(tmp_path / "odd", {**EVEN, "torch_dtype": "int3"})
    assert faults(odd, "parallel.model_parallel=2") == (
        "config.json: torch_dtype='int3': bytes are counted for float32, float16, bfloat16; give model.dtype",
    )
    assert run(odd, "parallel.model_parallel=2", "model.dtype=bfloat16") == 0


def batch_words(tmp_path: Path, config: dict[str, Any] = EVEN) -> list[str]:
    (tmp_path / "rows.jsonl").write_text('{"prompt": [1, 2]}\n{"prompt": [3, 4, 5, 6]}\n')
    folder = write_model(tmp_path / "weights", config)
    return [f"model.checkpoint_name_or_path={folder}", f"data.path={tmp_path}/rows.jsonl"]


def test_ranks_with_data_have_both_plans(tmp_path: Path, model: str, capsys: CAPTURE) -> None:
    """Rows and lengths are those of one process; memory is that of each rank, and of all."""
    words, parallel = batch_words(tmp_path), ["parallel.model_parallel=2", "parallel.data_parallel=3"]
    assert run(*words, *parallel, "rate=100") == 0
    page = capsys.readouterr().out
    assert page.index("layout of llama") < page.index("rows       2") < page.index("ranks      6.0 GiB on 6")
    assert "\ncache      1.0 GiB on each rank: " in page
    assert ": 3 replicas of 2\n  1.0 GiB on each: " in page
    assert " of each of 3 batches; model.batch_size=32\n" in page
    assert "tokens to generate at 100.0 tokens/s (given)" in page
    alone, both = as_json(capsys, *words), as_json(capsys, *words, *parallel)
    found = both["batch"]
    for same in ("rows", "prompt_tokens", "output_tokens_at_most", "sequence_tokens_at_most"):
        assert found[same] == alone[same]
    (stage,) = found["memory"]["ranks"]["stages"]
    (held,) = {rank["bytes"] for rank in both["rank_sums"]}
    assert stage["ranks_of_replica"] == [0, 1]
    assert stage["rank_weights_bytes"] == held
    assert found["memory"]["ranks"]["bytes"] == 6 * stage["rank_bytes"]
    assert found["sequences_that_fit"]["batches"] == 3


def test_stages_with_data_are_those_of_the_run(tmp_path: Path, model: str, capsys: CAPTURE) -> None:
    """They take as much time each, a large head included."""
    large_head = {**EVEN, "num_hidden_layers": 4, "vocab_size": 2048}
    words = [*batch_words(tmp_path, large_head), "parallel.pipeline_stage=2", "model.dtype=float32"]
    for more, layers in (([], [3, 1]), (["parallel.device_map=[1,3]"], [1, 3])):
        found = as_json(capsys, *words, *more)
        held = [rank["bytes"] for rank in found["rank_sums"]]
        stages = found["batch"]["memory"]["ranks"]["stages"]
        assert [stage["rank_weights_bytes"] for stage in stages] == held
        norms = [row for row in found["tensors"] if "post_attention" in row["name"]]
        assert [sum(row["shares"][0]["ranks"] == [rank] for row in norms) for rank in (0, 1)] == layers


def test_faults_of_a_batch_over_ranks(tmp_path: Path, model: str) -> None:
    words = batch_words(tmp_path)
    ranks = [*words[:1], "parallel.model_parallel=2"]
    assert faults(*ranks, "data.path=gone.jsonl", "rate=0.0", "calibrate=true") == (
        "data.path=gone.jsonl: no such file or folder",
        "rate=0.0: must be above 0, in generated tokens/s",
        "rate, calibrate: only one of these can be given; calibrate=true measures the rate",
        "calibrate=true: measures one process, and parallel.* makes several; give rate, of all",
    )
    assert faults(*words, "parallel.model_parallel=2", "model.dtype=float16")[0].startswith(
        "model.dtype=float16: not with runtime.device_target=CPU"
    )


@pytest.mark.slow
def test_the_layout_of_ranks_needs_neither_engine_nor_dataset(model: str) -> None:
    code = "import sys; from mindbatch.cli import main; code = main(sys.argv[1:]); print(code, *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, "layout", model, "parallel.model_parallel=2"],
        capture_output=True,
        text=True,
        check=True,
    )
    code, *loaded = done.stdout.splitlines()[-1].split()
    assert code == "0"
    assert not {"mindbatch.engine.engine", "mindbatch.llm", "mindbatch.dataset.rows"} & {*loaded}


def cut_rows(name: str) -> Placement:
    shards = [single_segment((2, 3), ((low, low + 2), (0, 3))) for low in (0, 2)]
    return Placement(name, (4, 3), (*shards, None, None))


def page_of(*placements: Placement) -> str:
    """The page of float32 tensors in one stage."""
    tensors = [tensor_json(placement, "F32") for placement in placements]
    return layout_page(tensors, rank_sums(tensors, len(placements[0].shards), 1))


def test_layers_that_are_cut_alike_share_a_line() -> None:
    whole = Placement("norm.weight", (1000,), (single_segment((1000,), ((0, 1000),)),) * 4)
    page = page_of(*(cut_rows(f"h.{layer}.w") for layer in (0, 1, 2, 5)), whole, cut_rows("h.1.x.2.w"))
    assert page.splitlines() == [
        "tensor        shape   cut               ranks  shape on a rank  bytes on a rank  bytes in all",
        "h.[0-2, 5].w  [4, 3]  dimension 0 in 2  0-1    [2, 3]                        24           192",
        "norm.weight   [1000]  whole, 4 times    0-3    [1000]                     4,000        16,000",
        "h.1.x.2.w     [4, 3]  dimension 0 in 2  0-1    [2, 3]                        24            48",
        "",
        "ranks  tensors  bytes on a rank",
        "0-1          6            4,120",
        "2-3          1            4,000",
        "",
        "6 tensors of 4,240 bytes; 16,240 bytes on 4 ranks",
    ]


def test_a_tensor_that_is_cut_unevenly_has_a_line_for_each_shape() -> None:
    shards = single_segment((1,), ((0, 1),)), single_segment((2,), ((1, 3),))
    lines = page_of(Placement("w", (3,), shards)).splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["w", "[3]", "unevenly", "0", "[1]", "4", "4"],
        ["w", "[3]", "unevenly", "1", "[2]", "8", "8"],
    ]


def test_names_cannot_act_on_the_terminal() -> None:
    page = page_of(*whole_placements({"w\x1b[2J": (1,)}).values())
    assert "\x1b" not in page
    assert page.endswith("1 tensors of 4 bytes; 4 bytes on 1 rank")
