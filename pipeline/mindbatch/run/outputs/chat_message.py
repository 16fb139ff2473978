"""An assistant's message in OpenAI's form: reasoning and tool calls apart from the text, where they parse."""

from collections.abc import Mapping, Sequence
from typing import Any

from mindbatch.dataset.rows import DataRow
from mindbatch.message_formats.parser import MessageFormat, MessageParser
from mindbatch.message_formats.pieces import ParsedMessage, ToolCall
from mindbatch.message_formats.registry import FORMATS, begins_in_reasoning, detect
from mindbatch.prompts.prompts import Prompt, token_ids_of
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.run.outputs.rows import OutputOptions, identifier

_END_TOKENS = 64
"""Tokens at the end of a prompt that show whether it leaves reasoning open."""


def message_format(name: str, tokenizer: Tokenizer | None) -> MessageFormat | None:
    """The format of that name; auto is the one that the chat template writes, none is None."""
    if name != "auto":
        return FORMATS.get(name)
    template = None if tokenizer is None else tokenizer.chat_template
    return None if template is None else detect(template)


def prompt_end(tokenizer: Tokenizer, prompt: Prompt) -> str:
    """The last text of a prompt, its control tokens spelt out."""
    return end_of(tokenizer, token_ids_of(prompt, tokenizer))


def end_of(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    return tokenizer.decode(token_ids[-_END_TOKENS:], skip_special_tokens=False)


def parser_of(row: DataRow, options: OutputOptions) -> MessageParser | None:
    """The parser of one output of a row; None where the model's messages are plain text."""
    format = options.message_format
    if format is None or "messages" not in row.content:
        return None
    in_reasoning = bool(format.reasoning_opening) and begins_in_reasoning(format, options.prompt_end(row))
    return format.parser(in_reasoning=in_reasoning, with_tools=bool(row.content.get("tools")))


def chat_message(
    row: DataRow, generation: Mapping[str, Any], options: OutputOptions
) -> tuple[dict[str, Any], str]:
    """The message of one output, and its finish reason.

    content is None beside tool calls alone; reasoning_content, tool_calls and parse_errors (why something
    that looks like a call stayed text) are there where the message has any.
    """
    message: dict[str, Any] = {"role": "assistant", "content": generation["text"], "refusal": None}
    reason: str = generation["finish_reason"]
    parser = parser_of(row, options)
    if parser is None:
        return message, reason
    parsed = ParsedMessage.of_pieces(parser.push(generation["text"]) + parser.finish())
    message["content"] = parsed.content
    if parsed.reasoning is not None:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["tool_calls"] = [
            tool_call(call, call_id(row, generation["index"], place, options))
            for place, call in enumerate(parsed.tool_calls)
        ]
        reason = reason_with_calls(reason)
    elif parsed.content is None:
        message["content"] = ""
    if parsed.notes:
        message["parse_errors"] = [*parsed.notes]
    return message, reason


def reason_with_calls(reason: str) -> str:
    """The finish reason of a message that has tool calls."""
    return "tool_calls" if reason == "stop" else reason


def tool_call(call: ToolCall, name: str) -> dict[str, Any]:
    """A tool call object. name: its identifier."""
    return {
        "id": name,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def call_id(row: DataRow, index: int, place: int, options: OutputOptions) -> str:
    """The identifier of a call: of its run, row, output and place."""
    return identifier("call_", f"{row.key}/{index}/{place}", options)
