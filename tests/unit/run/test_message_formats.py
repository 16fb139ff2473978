"""A run takes the format of calls from the template of chats with tools, and says where none is known."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from mindbatch.prompts.chat import ChatLimits
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.run.result_files import message_format
from shadow_llm import load_tokenizer
from stub_job import job_config, make_job

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
CALLS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls %}{{ '<tool_' ~ 'call>{' }}"
    '"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}{{ \'}</tool_call>\' }}'
    "{% endfor %}{% endfor %}"
)
_LOOP = "{% for a in range(99999) %}"
ENDLESS = "{#- <tool_call><function= -#}" + 2 * _LOOP + 2 * "{% endfor %}"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (CALLS, "hermes"),
        (PLAIN, None),
        ([{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": CALLS}], "hermes"),
    ],
)
def test_the_format_is_that_of_the_template_for_chats_with_tools(
    tmp_path: Path, template: Any, name: str | None
) -> None:
    tokenizer = load_tokenizer(tmp_path, chat_template=template)
    message = message_format("auto", tokenizer)
    tokenizer.close()
    assert (message and message.name) == name


def test_a_template_that_takes_too_long_is_told_by_its_text(tmp_path: Path) -> None:
    load_tokenizer(tmp_path, chat_template=ENDLESS).close()
    tokenizer = Tokenizer.load(tmp_path, ChatLimits(seconds=0.2))
    message = message_format("auto", tokenizer)
    assert message is not None
    assert message.name == "qwen3_coder"


TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("body", "name", "times"),
    [
        ({"tools": TOOLS}, "auto", 1),
        ({"tools": TOOLS}, "none", 0),
        ({"tools": TOOLS}, "hermes", 0),
        ({"tools": TOOLS, "tool_choice": "none"}, "auto", 0),
        ({}, "auto", 0),
    ],
)
def test_that_calls_stay_text_is_said_once_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: dict[str, Any], name: str, times: int
) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, **body}
    rows = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": chat}
        for number in range(3)
    ]
    data = tmp_path / "rows.jsonl"
    data.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    config = job_config(data, tmp_path / "run", output={"message_format": name}, format="openai")
    config.progress = "plain"
    assert make_job(config).run() == 0
    assert capsys.readouterr().err.count("calls in no format that is known: they stay text") == times
