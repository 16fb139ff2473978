"""Commands with predict YAMLs of MindFormers: the same run as with keys of our own, and its resumption."""

import json
import os
import shutil
from pathlib import Path

import pytest

from mindbatch import cli
from mindbatch.io.errors import EXIT_DONE
from small_qwen3 import write_small_qwen3

pytestmark = pytest.mark.slow

GPT2 = """\
run_mode: 'predict'
load_checkpoint: '{folder}'
use_parallel: False
parallel_config: {{data_parallel: 8, model_parallel: 1}}
train_dataset: &train_dataset {{batch_size: 8}}
train_dataset_task: {{dataset_config: *train_dataset}}
context: {{mode: 0, device_target: "CPU", device_id: 0}}
model:
  model_config:
    type: GPT2Config
    batch_size: 3
    seq_length: 64
    hidden_size: 32
    num_layers: 2
    num_heads: 2
    hidden_act: "gelu"
    param_init_type: "float32"
    compute_dtype: "float16"
    eos_token_id: 2
    repetition_penalty: 1.1
    max_new_tokens: 6
    top_k: 5
    top_p: 1
    do_sample: True
  arch:
    type: GPT2LMHeadModel
"""
OWN = (
    "model.batch_size=3",
    "model.seq_length=64",
    "model.dtype=float32",
    "decoding.eos_token_id=2",
    "decoding.repetition_penalty=1.1",
    "decoding.max_new_tokens=6",
    "decoding.top_k=5",
    "decoding.do_sample=true",
)


@pytest.fixture
def here(small_gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    (tmp_path / "predict_gpt2.yaml").write_text(GPT2.format(folder=small_gpt2))
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "row {n}"}}\n' for n in range(5)))
    return tmp_path


def test_a_prompt_is_continued_as_with_keys_of_our_own(
    here: Path, small_gpt2: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["generate", "prompts=hello", "model.mindformers_yaml=predict_gpt2.yaml"]) == EXIT_DONE
    from_yaml = capfd.readouterr()
    model = f"model.checkpoint_name_or_path={small_gpt2}"
    assert cli.main(["generate", "prompts=hello", model, *OWN]) == EXIT_DONE
    assert from_yaml.out == capfd.readouterr().out
    said = [line for line in from_yaml.err.splitlines() if line.startswith("mindbatch: ")]
    assert said == [
        "mindbatch: predict_gpt2.yaml: no effect: parallel_config.data_parallel (use_parallel is not True), "
        "model.model_config.compute_dtype (on a CPU a YAML's half types are not used; set model.dtype), "
        "3 keys of training, logs or MindSpore's own settings (listed by --print-config)"
    ]


def test_a_batch_is_resumed_without_the_yaml(
    here: Path, small_gpt2: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = ["batch", "data.path=rows.jsonl", "output.dir=run"]
    assert cli.main([*run, "model.mindformers_yaml=predict_gpt2.yaml"]) == EXIT_DONE
    results = (here / "run/results.jsonl").read_bytes()
    (here / "predict_gpt2.yaml").unlink()
    capfd.readouterr()
    assert cli.main([*run, f"model.checkpoint_name_or_path={small_gpt2}", *OWN]) == EXIT_DONE
    assert cli.main(["batch", "--config", "run/config.yaml", "output.dir=run"]) == EXIT_DONE
    assert cli.main(["replay", "output.dir=run", "key=3"]) == EXIT_DONE
    assert (here / "run/results.jsonl").read_bytes() == results
    assert "no effect" not in capfd.readouterr().err


DYNAMIC = """\
run_mode: predict
checkpoint: {load_path: saved}
inference: {max_new_tokens: 6, batch_size: 2, input_data: rows.jsonl, output: answers.jsonl}
training: {seed: 1, local_batch_size: 1}
lr_scheduler: {type: ConstantWarmUpLR}
parallelism: {tensor_parallel: 1, sequence_parallel: True}
context: {device_target: CPU, mode: 1}
model: {model_type: qwen3, architectures: Qwen3ForCausalLM, seq_length: 64, num_hidden_layers: 2}
"""
RECORDS = ({"instruction": "Add", "input": "1 + 2"}, {"instruction": "Go"}, {"other": "?"}, {"input": "x"})


def test_a_yaml_of_dynamic_graphs_runs_a_checkpoint_that_a_training_saved(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A record without a prompt is the only one that fails; the others are as with keys of our own."""
    model = write_small_qwen3(here / "hf")
    target = ("target.dir=saved", "target.format=iteration", "target.names=mcore")
    assert cli.main(["reshard", "source=hf", *target]) == EXIT_DONE
    for file in model.glob("tokenizer*"):
        shutil.copy(file, "saved")
    (here / "rows.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    (here / "p.yaml").write_text(DYNAMIC)
    yaml = ["batch", "model.mindformers_yaml=p.yaml", "output.dir=run"]
    assert cli.main([*yaml, "data.max_errors=1"]) == EXIT_DONE
    rows = [json.loads(line) for line in (here / "run/results.jsonl").read_text().splitlines()]
    assert [row["prompt"] for row in rows] == ["Add\n1 + 2", "Go", "x"]
    [error] = [json.loads(line) for line in (here / "run/errors.jsonl").read_text().splitlines()]
    assert (error["line"], error["reason"]) == (3, "data.template: no column instruction; the row has other")
    prompts = json.dumps([row["prompt"] for row in rows])
    own = ["model.checkpoint_name_or_path=hf", "model.seq_length=64", "decoding.max_new_tokens=6"]
    capfd.readouterr()
    assert cli.main(["generate", f"prompts={prompts}", *own, "output.format=json"]) == EXIT_DONE
    texts = [json.loads(line)["generations"][0]["text"] for line in capfd.readouterr().out.splitlines()]
    assert texts == [row["generations"][0]["text"] for row in rows]
