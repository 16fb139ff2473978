"""Native models where MindSpore, MindFormers and transformers cannot be imported."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors_writer import safetensors_bytes
from small_tokenizers import (
    CHATML,
    byte_level,
    sentencepiece_like,
    tokenizer_of,
    write_folder,
    write_gpt2_vocabulary,
)

from command_line import CommandLine
from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.io.installation import install_command
from mindbatch.model_spec.registry import describe, tensor_specs
from pangu_tokenizers import model_file, write
from running_server import RunningServer
from small_configs import EXPERTS, GPT2
from small_configs import LLAMA as LLAMA_CONFIG

pytestmark = pytest.mark.slow

ABSENT = ("mindspore", "mindformers", "transformers", "torch", "ray", "mpi4py", "modelscope_hub", "lm_eval")
BYTE_LEVEL = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": "<|im_end|>",
    "chat_template": CHATML,
}
LLAMA = {"tokenizer_class": "LlamaTokenizer", "legacy": False}
TYPES = {
    "gpt2": {**BYTE_LEVEL, "tokenizer_class": "GPT2Tokenizer"},
    "qwen3": {**BYTE_LEVEL, "tokenizer_class": "Qwen2Tokenizer"},
    "llama": LLAMA,
    "mixtral": LLAMA,
    "deepseek_v3": {**LLAMA, "tokenizer_class": "LlamaTokenizerFast"},
    "qwen3_next": BYTE_LEVEL,
}


@pytest.fixture
def absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of processes, and of those they start, that can import none of them."""
    folder = tmp_path / "site"
    folder.mkdir()
    program = f"import sys\nsys.modules.update(dict.fromkeys({ABSENT}))\n"
    (folder / "sitecustomize.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return {"PYTHONPATH": str(folder)}


def write_model(folder: Path, model_type: str) -> Path:
    """A folder with random weights whose tokenizer is in tokenizer.json."""
    settings = TYPES[model_type]
    backend = sentencepiece_like() if "LlamaTokenizer" in settings["tokenizer_class"] else byte_level()
    write_folder(folder, backend, settings)
    config = (
        GPT2
        if model_type == "gpt2"
        else LLAMA_CONFIG | {"num_key_value_heads": 4} | EXPERTS.get(model_type, {})
    )
    config |= {"model_type": model_type, "vocab_size": backend.get_vocab_size(), "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(3)
    weights = {
        name: (random.uniform(-0.3, 0.3, shape) + (len(shape) == 1)).astype(np.float32)
        for name, shape in source_shapes(tensor_specs(describe(config))).items()
    }
    (folder / "model.safetensors").write_bytes(safetensors_bytes(weights))
    return folder


@pytest.mark.parametrize("model_type", TYPES)
def test_texts_and_batches_are_those_with_all_packages(
    model_type: str, own_process: CommandLine, tmp_path: Path, absent: dict[str, str]
) -> None:
    folder = write_model(tmp_path / "model", model_type)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": text}) + "\n" for text in ("hello", "world, 12+30=42", "你好"))
    )
    shared = (f"model.checkpoint_name_or_path={folder}", "decoding.max_new_tokens=6")
    texts = []
    for name, environment in (("without", absent), ("with", None)):
        command = ("generate", 'prompts=["hello world"]', "output.format=json", *shared)
        done = own_process.run(*command, environment=environment)
        assert done.returncode == 0, done.stderr
        target = tmp_path / name
        batch = ("batch", f"data.path={rows}", f"output.dir={target}", *shared)
        started = own_process.run(*batch, "parallel.data_parallel=2", environment=environment)
        assert started.returncode == 0, started.stderr
        texts.append((json.loads(done.stdout)["generations"], (target / "results.jsonl").read_bytes()))
    assert texts[0] == texts[1]


def test_what_another_library_has_to_read_is_refused_with_its_extra(
    own_process: CommandLine, small_gpt2: Path, tmp_path: Path, absent: dict[str, str]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(small_gpt2 / name, folder)
    write_gpt2_vocabulary(folder)
    model = f"model.checkpoint_name_or_path={folder}"
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a"}\n')
    for task in (
        ("generate", "prompts=[a]"),
        ("batch", f"data.path={rows}", f"output.dir={tmp_path / 'run'}"),
    ):
        done = own_process.run(*task, model, environment=absent)
        assert done.returncode == 1, done.stderr
        line = f"mindbatch: {folder}: the tokenizer needs transformers; transformers is not installed here; "
        command = install_command("transformers").partition(" install ")[2]
        assert "'mindbatch[transformers]'" in command
        assert done.stderr.startswith(line), done.stderr
        assert done.stderr.endswith(f" install {command}\n"), done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_tokenizer_without_tokenizer_json_that_is_read_here(tmp_path: Path, absent: dict[str, str]) -> None:
    folder = write(tmp_path / "pangu", model_file())
    program = (
        "from pathlib import Path; from mindbatch.prompts.tokenizer import Tokenizer; "
        f"print(Tokenizer.load(Path({str(folder)!r})).encode('hello world'))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=os.environ | absent, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == tokenizer_of(folder).encode("hello world")


def test_a_server_answers(small_gpt2: Path, absent: dict[str, str]) -> None:
    pytest.importorskip("starlette")
    assert absent
    server = RunningServer(f"model.checkpoint_name_or_path={small_gpt2}", "server.model_name=small")
    try:
        body = {"model": "small", "prompt": "hello", "max_tokens": 4}
        status, answer = server.ask("POST", "/v1/completions", body)
    finally:
        server.end()
    assert status == 200, answer
    assert json.loads(answer)["usage"]["completion_tokens"] > 0


def test_doctor_names_each_and_its_extra(own_process: CommandLine, absent: dict[str, str]) -> None:
    done = own_process.run("doctor", "format=json", environment=absent)
    assert done.returncode == 0, done.stderr
    missing = json.loads(done.stdout)["missing"]
    assert missing.keys() >= {*ABSENT} - {"torch"}
    assert "'mindbatch[transformers]'" in missing["transformers"]
