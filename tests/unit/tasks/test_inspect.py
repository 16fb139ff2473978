"""`mindbatch inspect`: what it says of every kind of checkpoint and of strategy files."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ckpt_bytes import ckpt_bytes, text_value, with_crc
from safetensors_writer import bfloat16_bits, safetensors_bytes, write_folder

from mindbatch import cli
from mindbatch.checkpoint.folders.digests import record_digests
from mindbatch.checkpoint.strategy.strategy import OperatorStrategy, Strategy, TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import strategy_bytes
from mindbatch.config.paths import model_folder_error
from mindbatch.io.errors import CheckpointError
from mindbatch.tasks.inspect import InspectConfig, run

TENSORS = {
    "a.weight": np.zeros((2, 3), np.float32),
    "a.bias": bfloat16_bits([1, 2]),
    "b.bias": np.zeros(4, np.float32),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = write_folder(tmp_path / "m", TENSORS)
    record_digests(home)
    return home


def page(capsys: pytest.CaptureFixture[str], path: Path, **keys: Any) -> list[str]:
    assert run(InspectConfig(path=str(path), **keys)) == 0
    return capsys.readouterr().out.splitlines()


def as_json(capsys: pytest.CaptureFixture[str], path: Path, **keys: Any) -> dict[str, Any]:
    assert run(InspectConfig(path=str(path), format="json", **keys)) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def test_the_page_of_a_model_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = page(capsys, folder)
    verdict, (head, _, titles, *rest) = lines[: lines.index("")], lines[lines.index("") + 1 :]
    assert all(line.startswith("not run by this version: ") for line in verdict)
    column, end = titles.index("dtype"), titles.index("bytes") + len("bytes")
    assert [line[column:].split()[0] for line in rest[:3]] == ["F32", "BF16", "F32"]
    assert [line[:end].split()[-1] for line in rest[:3]] == ["24", "4", "16"]
    assert head == f"{folder}: Hugging Face folder, safetensors"
    assert titles.split() == ["tensor", "dtype", "shape", "bytes", "sha256"]
    cells = [line.split() for line in rest]
    assert cells[0][:5] == ["a.weight", "F32", "[2,", "3]", "24"]
    assert cells[4:8] == [
        ["dtype", "tensors", "elements", "bytes"],
        ["F32", "2", "10", "40"],
        ["BF16", "1", "2", "4"],
        ["all", "3", "12", "44"],
    ]
    assert rest[8:] == ["", "digests.json: digests=true compares every tensor with it"]


def test_json_has_everything(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = as_json(capsys, folder)
    recorded = json.loads((folder / "digests.json").read_text())["files"]["model.safetensors"]
    assert (content["kind"], content["path"], len(content["ranks"])) == ("huggingface", str(folder), 1)
    (rank,) = content["ranks"]
    assert (rank["count"], rank["bytes"]) == (3, 44)
    assert rank["tensors"][1] == {
        "name": "a.bias", "dtype": "BF16", "shape": [2], "bytes": 4, "file": "model.safetensors",
        "sha256": recorded["a.bias"],
    }  # fmt: skip


def test_filter_and_limit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = as_json(capsys, folder, filter="*.bias", limit=1)["ranks"][0]
    assert [tensor["name"] for tensor in content["tensors"]] == ["a.bias"]
    assert (content["count"], content["bytes"]) == (2, 20)
    assert "1 more tensor; limit=N shows more of them" in page(capsys, folder, filter="*.bias", limit=1)
    assert "3 more tensors; limit=N shows more of them" in page(capsys, folder, limit=0)
    assert "no tensors match filter=none*" in page(capsys, folder, filter="none*")


def test_what_tells_of_damage_is_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = "no digests: nothing here tells of a changed bit in a tensor"
    assert "digests.json: was compared" in page(capsys, folder, digests=True)
    (folder / "digests.json").unlink()
    assert nothing in page(capsys, folder, digests=True)
    assert as_json(capsys, folder)["ranks"][0]["witness"] is None
    for rank, content in enumerate((ckpt_bytes(TENSORS), with_crc(ckpt_bytes(TENSORS)), ckpt_bytes(TENSORS))):
        (tmp_path / f"r/rank_{rank}").mkdir(parents=True)
        (tmp_path / f"r/rank_{rank}/m.ckpt").write_bytes(content)
    lines = page(capsys, tmp_path / "r", digests=True)
    assert lines[-2:] == [f"ranks 0, 2: {nothing}", "rank 1: CRC-32: was compared"]
    assert lines[:2] == [
        "the rank folders hold copies of one checkpoint: their tensors begin alike; reshard reads the first",
        "",
    ]


def test_damage_is_shown_after_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = bytearray((folder / "model.safetensors").read_bytes())
    damaged[-1] ^= 1
    (folder / "model.safetensors").write_bytes(damaged)
    page(capsys, folder)
    with pytest.raises(CheckpointError, match=r"model.safetensors: tensor 'b.bias' is damaged"):
        run(InspectConfig(path=str(folder), digests=True))
    assert "b.bias" in capsys.readouterr().out


def test_a_ckpt_with_texts_and_a_checksum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.ckpt"
    path.write_bytes(with_crc(ckpt_bytes(TENSORS) + text_value("note", "by\x1b[2J hand")))
    lines = page(capsys, path, digests=True)
    assert lines[0] == f"{path}: one checkpoint file, ckpt"
    assert lines[-3:] == [r"note = by\x1b[2J hand", "", "CRC-32: was compared"]
    assert as_json(capsys, path)["ranks"][0]["texts"] == {"note": "by\x1b[2J hand"}
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(CheckpointError, match="its CRC-32 is"):
        run(InspectConfig(path=str(path), digests=True))


def test_ranks_that_hold_alike_share_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(4):
        tensors = {"same": np.zeros(2, np.float32), "cut": np.zeros(1 if rank == 2 else 3, np.float32)}
        (tmp_path / f"rank_{rank}").mkdir()
        (tmp_path / f"rank_{rank}/m.safetensors").write_bytes(safetensors_bytes(tensors))
    lines = page(capsys, tmp_path)
    assert lines[0] == f"{tmp_path}: rank folders, safetensors"
    assert lines[2].split() == ["0", "2", "20", "rank_0/m.safetensors"]
    assert [line.split() for line in lines if line.startswith(("same", "cut"))] == [
        ["same", "F32", "[2]", "8", "all"],
        ["cut", "F32", "[3]", "12", "0-1,", "3"],
        ["cut", "F32", "[1]", "4", "2"],
    ]
    assert [rank["rank"] for rank in as_json(capsys, tmp_path)["ranks"]] == [0, 1, 2, 3]


def test_strategy_files_and_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layouts = (
        TensorLayout("w", (2, 4), (0, -1), opt_shard_step=4, opt_shard_size=2),
        TensorLayout("v", (2, 4), ((1, 0), -1)),
    )
    path = tmp_path / "s.ckpt"
    path.write_bytes(strategy_bytes(Strategy(layouts, (OperatorStrategy("op", 0),))))
    for place in (path, tmp_path):
        lines = page(capsys, place)
        assert lines[:2] == [f"{place}: parallel strategy", "stages 0; 8 devices each; 8 ranks in all"]
        assert [line.split() for line in lines[4:]] == [
            ["w", "0", "[2,", "4]", "[0,", "-1]", "4x1", "2"],
            ["v", "0", "[2,", "4]", "[[1,", "0],", "-1]", "8x1", "-"],
        ]
    content = as_json(capsys, path, filter="v")
    assert (content["kind"], content["ranks"], content["count"]) == ("strategy", 8, 1)
    assert content["parameters"][0]["tensor_map"] == [[1, 0], -1]
    assert "1 more parameter; limit=N shows more of them" in page(capsys, path, limit=1)


@pytest.mark.slow
def test_no_heavy_library_is_imported(folder: Path) -> None:
    code = (
        "import sys; from mindbatch import cli; cli.main(sys.argv[1:]);"
        "print([name for name in ('mindspore', 'transformers', 'numpy') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, "inspect", str(folder / "model.safetensors"), "digests=true"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_why_a_model_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The reasons are those of generate, with the tensors where they can be read."""
    home = write_folder(tmp_path / "m", TENSORS)
    (home / "config.json").write_text('{"model_type": "jetmoe"}')
    assert "'jetmoe', a mixture of experts, is not supported" in page(capsys, home)[0]
    run(InspectConfig(path=str(home), format="json"))
    assert "mixture" in json.loads(capsys.readouterr().out)["not_run"][0]
    (home / "model.safetensors").rename(home / "adapter_model.safetensors")
    (home / "config.json").unlink()
    assert "is a LoRA adapter, not a model; merge it" in page(capsys, home)[0]


def test_how_a_model_would_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = Path(__file__).parents[3] / "examples/tiny_gpt2"
    assert page(capsys, tiny)[:6] == [
        "runs as gpt2: 574,560 parameters, up to 2,048 tokens",
        "  on a CPU: 2.2 MiB in float32, 1.1 MiB in bfloat16, 561.1 KiB in int8; a token of the cache "
        "2.6 KiB",
        "  on Ascend: 1.1 MiB in bfloat16; a token of the cache 1.3 KiB",
        "  parallel.model_parallel: 1, 2, 4",
        "  no chat template: prompts are texts; messages need chat_template.jinja in the folder",
        "",
    ]
    run(InspectConfig(path=str(tiny), format="json"))
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert (runs["parameters"], runs["model_parallel"], runs["not_on_ascend"]) == (574560, [2, 4], [])
    config = json.loads((tiny / "config.json").read_text()) | {"surprise": 3}
    (write_folder(tmp_path / "m", TENSORS) / "config.json").write_text(json.dumps(config))
    assert "surprise=3: unknown key" in page(capsys, tmp_path / "m")[0]


def test_what_a_model_lacks_for_texts_and_chats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "m"
    shutil.copytree(Path(__file__).parents[3] / "examples/tiny_gpt2", home)
    (home / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert not any(line.startswith("  no ") for line in page(capsys, home))
    assert as_json(capsys, home)["runs"]["chat_template"] is True
    (home / "tokenizer.json").write_text("{}")
    assert page(capsys, home)[0].startswith(f"not run by this version: {home / 'tokenizer.json'}: ")
    for file in home.glob("tokenizer*"):
        file.unlink()
    assert "  no tokenizer: prompts are token ids, or model.tokenizer=FOLDER has one" in page(capsys, home)
    assert as_json(capsys, home)["runs"]["tokenizer"] is False


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("path", ["inspect", "org/model"]),
        ("source", ["reshard", "source=org/model", "target.dir=cut"]),
        ("checkpoints.a", ["evaluate", "checkpoints={a: org/model}", "data.path=-", "metrics=[perplexity]"]),
        (
            "model.checkpoint_name_or_path",
            ["generate", "model.checkpoint_name_or_path=org/model", "prompts=a"],
        ),
    ],
)
def test_advice_to_fetch_is_what_the_task_takes(
    key: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if f"{key}=org/model: " in line]
    assert "hf download org/model --local-dir model" in line
    assert ("model.download=true" in line) == key.startswith("model.")


def test_the_nearest_type_and_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = write_folder(tmp_path / "m", TENSORS)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "rms_norm_eps": 1e-6}
    config = {"model_type": "lamma", **sizes, "intermediate_size": 96, "vocab_size": 100, "surprise": 3}
    (home / "config.json").write_text(json.dumps(config | {"mlp_bias": False}))
    assert page(capsys, home)[1:3] == [
        "nearest supported type: llama; what differs:",
        "  config.json: surprise=3: unknown key that may change what the model computes",
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"quantization_config": {"quant_method": "hqq"}}, "quantised (HQQ)"),
        ({"architectures": ["Qwen2ForSequenceClassification"]}, "classifies texts"),
    ],
)
def test_the_nearest_type_of_a_supported_one_is_its_own(
    change: dict[str, Any], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = write_folder(tmp_path / "m", TENSORS)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    (home / "config.json").write_text(json.dumps({"model_type": "qwen2", **sizes, **change}))
    told = page(capsys, home)
    place = told.index("nearest supported type: qwen2, its own; what differs is said above")
    assert reason in told[place - 1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("q4.gguf", "is of llama.cpp (GGUF)"),
        ("predict.yaml", "is a YAML file, as MindFormers has them"),
        ("checkpoint-500/x", "is the folder of a training; give one in it, such as"),
        ("snapshots/x blobs/x", "is an entry of the hub cache; give the model's name"),
        ("params.json consolidated.00.pth", "holds the authors' own format"),
        ("model_index.json", "is a diffusers pipeline"),
    ],
)
def test_folders_of_others(name: str, said: str, tmp_path: Path) -> None:
    for each in map(tmp_path.joinpath, name.split()):
        each.parent.mkdir(exist_ok=True)
        each.touch()
    with pytest.raises(CheckpointError) as refused:
        run(InspectConfig(path=str(tmp_path)))
    assert said in refused.value.lines[0]
    assert said in (model_folder_error(tmp_path) or "")


@pytest.mark.parametrize("name", ["q4.gguf", "predict.yaml"])
def test_files_of_others(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    reason = model_folder_error(tmp_path / name)
    assert reason == model_folder_error(tmp_path)
    assert reason is not None
    with pytest.raises(CheckpointError, match=re.escape(reason)):
        run(InspectConfig(path=str(tmp_path / name)))
