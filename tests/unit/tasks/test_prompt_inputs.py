"""What `generate` and `compare` take for prompts, and what they refuse before anything is loaded."""

from pathlib import Path

import pytest

from mindbatch.config.compose import compose_task
from mindbatch.io.errors import ConfigError
from mindbatch.tasks.generate.schema import GenerateConfig
from mindbatch.tasks.registry import TASKS

MODEL = "model=tiny_gpt2"


@pytest.mark.parametrize("suffix", [".json", ".csv", ".parquet", ".jsonl.gz"])
def test_other_data_is_for_batch(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"rows{suffix}"
    file.write_text("[]")
    with pytest.raises(ConfigError, match=rf"or \.jsonl; .* mindbatch batch data\.path={file}"):
        compose_task(TASKS["generate"], [MODEL, f"prompts_file={file}"]).finish()


def test_tools_are_a_list_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text("[]")
    given = [MODEL, "prompts=Hi", "chat=true", "chat_template_kwargs={enable_thinking: false}"]
    config = compose_task(TASKS["generate"], [*given, f"tools={file}"]).finish()
    assert isinstance(config, GenerateConfig)
    assert config.tools == str(file)
    assert config.chat_template_kwargs == {"enable_thinking": False}
    with pytest.raises(ConfigError, match=r"tools=.*no\.json: no such file"):
        compose_task(TASKS["generate"], [*given, f"tools={tmp_path}/no.json"]).finish()


@pytest.mark.parametrize("option", ["system=x", "tools=[{a: 1}]", "chat_template_kwargs={a: 1}"])
def test_what_only_chats_have(option: str) -> None:
    name = option.partition("=")[0]
    with pytest.raises(ConfigError, match=f"{name}: has no effect without chat=true or messages"):
        compose_task(TASKS["generate"], [MODEL, "prompts=Hi", option]).finish()
    for chats in ("messages=[{role: user, content: Hi}]", "prompts=[[{role: user, content: Hi}]]"):
        assert compose_task(TASKS["generate"], [MODEL, chats, option]).finish()
