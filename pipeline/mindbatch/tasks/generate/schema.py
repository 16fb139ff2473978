"""The keys of `mindbatch generate`, and of every task that takes prompts directly."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mindbatch.config.error_log import shown
from mindbatch.config.lora_schema import idle_errors, lora_errors
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.config.paths import (
    SAVED_BESIDE,
    STANDARD_INPUT,
    new_files_error,
    output_file_error,
    prompts_file_error,
    resolved,
    resolved_tools,
)
from mindbatch.config.schema import SchemaKeys, excludes, option, private_option, section
from mindbatch.fields import kinds as kind
from mindbatch.fields.field import Need
from mindbatch.io.amounts import DAY_RULE, is_day

if TYPE_CHECKING:
    from mindbatch.prompts.prompts import PromptRows


_CHATS = (Need(lambda config: config.may_chat, "chat", "set chat=true, give messages"),)


@dataclass
class PromptTaskConfig(ModelTaskConfig):
    """The keys of a task that runs a model, and the sources of its prompts."""

    last_input: ClassVar[str] = "messages=..."
    """The last source of prompts in the error line that lists them."""

    prompts: Any = option(
        None,
        "prompts to continue; each is a text or a list of token ids",
        kind.described("prompt, list of prompts or null"),
    )
    prompts_file: str | None = option(
        None, "file with a prompt on each line; - is standard input", is_path=True
    )
    messages: Any = option(
        None,
        "chats, each a list like [{role: user, content: Hi}]",
        kind.described("chat, list of chats or null"),
    )
    chat: bool = option(False, "send each prompt as a user's message through the chat template")
    system: str | None = option(
        None, "system message before each prompt; needs chat=true or messages", needs=_CHATS
    )
    tools: Any = option(
        None,
        "tools that the chat template gets",
        kind.described("list of JSON objects, JSON file that holds it, or null"),
        is_path=True,
        needs=_CHATS,
    )
    chat_template_kwargs: Any = option(
        None,
        "further variables of the chat template, like {enable_thinking: false}",
        kind.described("mapping or null"),
        needs=_CHATS,
    )
    date: str | None = option(
        None, "day that the chat template writes, as YYYY-MM-DD; null: today", needs=_CHATS
    )

    def given_inputs(self) -> list[str]:
        """Lists the sources of prompts that are set."""
        return [name for name in ("prompts", "prompts_file", "messages") if getattr(self, name) is not None]

    def prompt_rows(self) -> "PromptRows":
        """Reads the prompts. Raises ConfigError as `read_prompts` does."""
        from mindbatch.prompts.prompts import read_prompts  # tokenizers: not needed for help

        return read_prompts(
            prompts=self.prompts,
            prompts_file=self.prompts_file,
            messages=self.messages,
            chat=self.chat,
            system=self.system,
            tools=self.tools,
            chat_template_kwargs=self.chat_template_kwargs,
            date=self.date,
        )

    def resolve_paths(self) -> list[str]:
        errors = super().resolve_paths()
        if self.prompts_file != STANDARD_INPUT:
            self.prompts_file = resolved("prompts_file", self.prompts_file, prompts_file_error, errors)
        self.tools = resolved_tools("tools", self.tools, errors)
        return errors

    def run_errors(self, keys: SchemaKeys) -> Iterable[str]:
        """Yields errors, among them one if prompts have no source or several."""
        yield from super().run_errors(keys)
        inputs = self.given_inputs()
        if not inputs:
            yield (
                "nothing to generate: give prompts='[\"One, two,\"]', prompts_file=FILE (- is standard "
                f"input), {self.last_input}"
            )
        if len(inputs) > 1:
            yield f"{', '.join(inputs)}: only one of these can be given"
        if self.date is not None and not is_day(self.date):
            yield f"date={shown(self.date)}: {DAY_RULE}"
        if not [*lora_errors(self.lora)]:
            yield from idle_errors(self.lora)

    @property
    def may_chat(self) -> bool:
        """True if prompts may be conversations, by a key or because a file has messages."""
        has_own = self.messages is not None or self.prompts_file is not None
        return self.chat or has_own or isinstance(self.prompts, list)


@dataclass
class OutputConfig:
    """The file of the generations, and their form."""

    format: str = option("text", "text, or json with token ids and timings", kind.choice("text", "json"))
    file: str | None = option(
        None,
        "file to write; null: standard output",
        is_path=True,
        needs=(excludes("interactive", True),),
    )
    overwrite: bool = option(False, "overwrite output.file if it exists")
    private: bool = private_option()


@dataclass
class GenerateConfig(PromptTaskConfig):
    """The keys of `mindbatch generate`."""

    uses_one_decoding: ClassVar[bool] = True
    advises_sampling: ClassVar[bool] = True
    last_input: ClassVar[str] = "messages=... or interactive=true"

    output: OutputConfig = section(OutputConfig)
    stream: bool = option(False, "print the text token by token")
    interactive: bool = option(False, "keep asking for prompts")

    @property
    def is_private(self) -> bool:
        return self.output.private

    def given_inputs(self) -> list[str]:
        return super().given_inputs() + (["interactive"] if self.interactive else [])

    def resolve_paths(self) -> list[str]:
        errors = super().resolve_paths()
        error_of = output_file_error if self.output.overwrite else new_files_error(SAVED_BESIDE)
        self.output.file = resolved("output.file", self.output.file, error_of, errors)
        return errors

    def run_errors(self, keys: SchemaKeys) -> Iterable[str]:
        yield from super().run_errors(keys)
        if self.interactive:
            yield from self._conversation_errors()
        if self.output.format == "json":
            for name in ("stream", "interactive"):
                if getattr(self, name):
                    yield (
                        f"{name}=true: cannot go with output.format=json, which is written when a row is done"
                    )

    def _conversation_errors(self) -> Iterator[str]:
        samples = self.decoding.num_return_sequences
        if samples > 1:
            yield (
                f"decoding.num_return_sequences={samples}: interactive=true gives one answer to each prompt; "
                "set it to 1"
            )
