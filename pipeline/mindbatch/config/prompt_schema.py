"""The keys of every task that is given its prompts directly: a list, a file, or chats."""

from dataclasses import dataclass
from typing import Any

from mindbatch.config.model_schema import ModelTaskConfig
from mindbatch.config.schema_fields import option


@dataclass
class PromptTaskConfig(ModelTaskConfig):
    """The sections of a task that runs a model, and where its prompts come from."""

    prompts: Any = option(
        None,
        "what to continue; a prompt is a text or a list of token ids",
        accepts="prompt, list of prompts or null",
    )
    prompts_file: str | None = option(
        None, "file with a prompt on each line; - is standard input", is_path=True
    )
    messages: Any = option(
        None, "chats, each a list like [{role: user, content: Hi}]", accepts="chat, list of chats or null"
    )
    chat: bool = option(False, "send each prompt as a user's message through the chat template")
    system: str | None = option(None, "system message put before each prompt; needs chat=true or messages")
    tools: Any = option(
        None,
        "what the chat template is given as tools",
        accepts="list of JSON objects, JSON file that holds it, or null",
        is_path=True,
    )
    chat_template_kwargs: Any = option(
        None,
        "further variables of the chat template, like {enable_thinking: false}",
        accepts="mapping or null",
    )
