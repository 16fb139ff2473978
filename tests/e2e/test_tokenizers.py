"""Texts through tokenizers that are read here and not by transformers, as a user gives them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from model_folders import PANGU, descriptions, write_folder

from command_line import CommandLine
from mindbatch.prompts.tokenizer import Tokenizer
from pangu_tokenizers import model_file, write

pytestmark = pytest.mark.slow

TEXTS = ("今天 天气很好", "hello world")
FEW = "decoding.max_new_tokens=6"


@pytest.fixture(scope="module")
def pangu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny PanGu-alpha whose vocabulary is larger than the tokenizer's, as the published one's is."""
    described = descriptions(PANGU)["pangu_alpha"]
    config = described["config"] | {"vocab_size": 448, "eos_token_id": 9}
    width = config["hidden_size"]
    shapes = {name: shape for name, (shape, _) in described["tensors"].items()}
    words = {name for name, shape in shapes.items() if shape == [described["config"]["vocab_size"], width]}
    tensors = {
        name: [[448, width] if name in words else shape, spread]
        for name, (shape, spread) in described["tensors"].items()
    }
    folder = tmp_path_factory.mktemp("pangu") / "model"
    write_folder(folder, described | {"config": config, "tensors": tensors})
    return write(folder, model_file())


def prompts(values: Iterable[Any]) -> str:
    return f"prompts={json.dumps([*values], ensure_ascii=False)}"


def test_pangu_alpha_continues_texts(command: CommandLine, pangu: Path) -> None:
    """As it continues their tokens; whole or streamed."""
    tokenizer = Tokenizer.load(pangu)
    assert tokenizer is not None
    model = f"model.checkpoint_name_or_path={pangu}"
    outputs = []
    for given in (TEXTS, map(tokenizer.encode, TEXTS)):
        done = command.run("generate", model, prompts(given), FEW, "output.format=json")
        assert done.returncode == 0, done.stderr
        outputs.append([json.loads(line)["generations"] for line in done.stdout.splitlines()])
    assert outputs[0] == outputs[1]
    assert [each["text"] for [each] in outputs[0]] == [
        tokenizer.decode(each["token_ids"]) for [each] in outputs[0]
    ]
    plain, streamed = (
        command.run("generate", model, prompts(TEXTS), FEW, *more) for more in ((), ("stream=true",))
    )
    assert plain.stdout == streamed.stdout != ""


def test_pangu_alpha_in_mindformers_names(command: CommandLine, pangu: Path) -> None:
    """Cut for two ranks and back: the tokenizer goes along, and the same texts come of it."""
    there = ["reshard", f"source={pangu}", "target.dir=there", "target.names=mindformers"]
    named = command.run(*there, "target.format=ckpt", "target.model_parallel=2", leaves=["there"])
    assert named.returncode == 0, named.stderr
    leaves = ["there", "whole"]
    back = command.run("reshard", "source=there", "target.dir=whole", "verify=true", leaves=leaves)
    assert (back.returncode, back.stderr) == (
        0,
        "mindbatch: there: the tensors have MindFormers' names\n",
    )
    outputs = [
        command.run(
            "generate", f"model.checkpoint_name_or_path={folder}", prompts(TEXTS), FEW, leaves=leaves
        ).stdout
        for folder in (pangu, "whole")
    ]
    assert outputs[0] == outputs[1] != ""
    seen = command.run("inspect", "whole", leaves=leaves)
    assert seen.returncode == 0
    assert "pangu_alpha" in seen.stdout
