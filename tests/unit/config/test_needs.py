"""What a key needs beside it is declared on the key, and one that has no effect is refused by one rule."""

import pytest

from mindbatch.config.schema import schema_keys
from mindbatch.tasks.registry import TASKS
from task_configs import faults_of_task

MODEL = "model=tiny_gpt2"
PROMPT = "prompts=Hi"


@pytest.mark.parametrize("task", TASKS)
def test_a_need_names_a_key_of_some_task(task: str) -> None:
    everywhere = {name for other in TASKS.values() for name in schema_keys(other.schema).keys}
    needs = [need for key in schema_keys(TASKS[task].schema).keys.values() for need in key.needs]
    own_names = {need.missing for need in needs} - {"do_sample"}
    assert {name for name in own_names if name not in everywhere} <= {
        name.removeprefix("decoding.") for name in everywhere if name.startswith("decoding.")
    }


@pytest.mark.parametrize(
    ("task", "words", "line"),
    [
        (
            "generate",
            [MODEL, PROMPT, "launch.ray_address=head:6379"],
            "launch.ray_address=head:6379: has no effect with launch.launcher=dynamic; "
            "set launch=ray or remove it",
        ),
        (
            "generate",
            [MODEL, PROMPT, "launch=ray", "launch.node_rank=1"],
            "launch.node_rank=1: has no effect with launch.launcher=ray; remove it",
        ),
        (
            "generate",
            [MODEL, PROMPT, "launch=ray", "launch.dry_run=true"],
            "launch.dry_run=true: has no effect with launch.launcher=ray; remove it",
        ),
        (
            "generate",
            [MODEL, PROMPT, "lora.max_loaded=2"],
            "lora.max_loaded=2: has no effect without lora.adapters; name a folder there or remove it",
        ),
        (
            "generate",
            [MODEL, PROMPT, "model.download_files=[a]"],
            "model.download_files=[a]: has no effect with model.download=false; "
            "set model.download=true or remove it",
        ),
        (
            "reshard",
            ["source=shipped:examples/tiny_gpt2", "target.dir=cut", "target.qkv_grouped=false"],
            "target.qkv_grouped=false: has no effect with target.qkv_concat=false; "
            "set target.qkv_concat=true or remove it",
        ),
        (
            "reshard",
            ["source=shipped:examples/tiny_gpt2", "target.dir=cut", "target.overflow=infinity"],
            "target.overflow=infinity: has no effect with target.dtype=keep; remove it",
        ),
    ],
)
def test_what_has_no_effect_is_refused(task: str, words: list[str], line: str) -> None:
    assert line in faults_of_task(task, *words)


def test_a_refused_value_is_no_missing_one() -> None:
    words = [MODEL, PROMPT, "launch.launcher=rey"]
    assert faults_of_task("generate", *words, "launch.ray_address=a:1") == faults_of_task("generate", *words)
