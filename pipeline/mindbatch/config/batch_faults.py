"""What the options of a dataset and of its results may be, alone and together."""

import math
from collections.abc import Iterator
from typing import Any

from mindbatch.config.schema import BatchConfig, BatchOutputConfig, DataConfig, PlanConfig, ReplayConfig
from mindbatch.config.settings import shown
from mindbatch.config.sizes import parse_bytes

SOURCES = ("prompt_column", "messages_column", "template", "template_file")
COLUMNS = (
    "key_column",
    "prompt_column",
    "messages_column",
    "decoding_column",
    "tools_column",
    "chat_template_kwargs_column",
)
BESIDE_CHATS = ("system", "tools", "tools_column", "chat_template_kwargs", "chat_template_kwargs_column")
RESULT_FIELDS = frozenset(
    ("key", "prompt", "generations", "prompt_tokens", "generated_tokens", "prompt_logprobs")
)
CSV_FIELDS = RESULT_FIELDS | {
    *("index", "text", "token_ids", "finish_reason", "tokens", "cumulative_logprob", "logprobs"),
    *("score", "rank", "drafted_tokens", "accepted_tokens"),
}
"""What results hold already: no column of the data can have such a name there."""
LARGEST_ROW = 1 << 30


def batch_faults(config: BatchConfig) -> Iterator[str]:
    """Every fault in the values of a task that runs a dataset, except those of its paths and its model."""
    yield from _data_faults(config.data)
    yield from _output_faults(config.output, config.data)
    if config.continues_run and config.output.on_mismatch != "refuse":
        yield (
            f"output.on_mismatch={config.output.on_mismatch}: a run can only be continued as it was begun; "
            "remove it"
        )
    if isinstance(config, PlanConfig):
        yield from _plan_faults(config)
    if isinstance(config, ReplayConfig) and not config.key:
        yield "key: must be given: the key of the row to run again"


def _data_faults(data: DataConfig) -> Iterator[str]:
    for name in (*COLUMNS, "template"):
        if getattr(data, name) == "":
            yield f"data.{name}: must not be empty"
    if data.template_file is not None and data.template is not None and len(_sources(data)) == 2:
        yield "data.template, data.template_file: only one of these can be given"
    elif len(_sources(data)) > 1:
        yield f"{', '.join(_sources(data))}: a prompt comes from only one of these"
    yield from _filter_faults(data.filter_keys)
    yield from _size_faults(data.max_line_bytes)
    yield from _no_effects(data)


def _sources(data: DataConfig) -> list[str]:
    return [f"data.{name}" for name in SOURCES if getattr(data, name) is not None]


def _filter_faults(keys: Any) -> Iterator[str]:
    """A text is the path of a file, looked at with the other paths."""
    if keys is None or isinstance(keys, str):
        return
    hint = "a list of keys, like [7, q-12], or a file with a key on each line"
    if not isinstance(keys, list):
        yield f"data.filter_keys={shown(keys)}: must be {hint}"
    elif not keys:
        yield "data.filter_keys=[]: leaves no row; null takes all"
    else:
        bad = [key for key in keys if isinstance(key, bool) or not isinstance(key, str | int) or key == ""]
        if bad:
            yield f"data.filter_keys: {shown(bad[0])}: a key is a text or a whole number; quote a text"


def _size_faults(text: str) -> Iterator[str]:
    try:
        if parse_bytes(text) > LARGEST_ROW:
            yield f"data.max_line_bytes={shown(text)}: must be at most 1GiB, for a row is read as a whole"
    except ValueError as error:
        yield f"data.max_line_bytes={shown(text)}: {error}"


def _no_effects(data: DataConfig) -> Iterator[str]:
    """Options that could never do anything beside the others, with what to do instead."""
    if data.format == "openai":
        for name in (*COLUMNS, "template", "template_file", "chat", "system"):
            if getattr(data, name) not in (None, False):
                yield f"data.{name}: has no effect with data.format=openai, where each row says it; remove it"
        return
    if data.format == "text":
        for name in COLUMNS:
            if getattr(data, name) is not None:
                yield f"data.{name}: there are no columns with data.format=text; remove it"
    if data.chat and data.messages_column is not None:
        yield "data.chat=true: has no effect with data.messages_column, whose chats go as they are; remove it"
    for name in BESIDE_CHATS if not data.chat and _never_chats(data) else ():
        if getattr(data, name) is not None:
            yield f"data.{name}: has no effect on prompts that are no chats; set data.chat=true or remove it"


def _never_chats(data: DataConfig) -> bool:
    """Whether no row could be a chat by itself; a column may hold chats as well as texts."""
    return data.format == "text" or data.template is not None or data.template_file is not None


def _output_faults(output: BatchOutputConfig, data: DataConfig) -> Iterator[str]:
    if output.format == "openai" and data.format not in ("auto", "openai"):
        yield (
            f"output.format=openai: answers requests in OpenAI's format, not data.format={data.format}; "
            "use jsonl, parquet or csv"
        )
    yield from _column_faults(output, data)


def _column_faults(output: BatchOutputConfig, data: DataConfig) -> Iterator[str]:
    names = output.columns
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        yield f"output.columns={shown(names)}: must be a list of names of columns, like [label, source]"
        return
    if not names:
        return
    if "openai" in (output.format, data.format):
        yield (
            "output.columns: OpenAI's requests have no columns, and its responses no place for them; remove "
            "it, or let custom_id tell what the rows are"
        )
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield f"output.columns: {shown(name)} is given twice"
    taken = CSV_FIELDS if output.format == "csv" else RESULT_FIELDS
    for name in dict.fromkeys(name for name in names if name in taken):
        yield f"output.columns: {name}: results have a field of that name already"


def _plan_faults(config: PlanConfig) -> Iterator[str]:
    if config.rate is not None and not (math.isfinite(config.rate) and config.rate > 0):
        yield f"rate={shown(config.rate)}: must be above 0, in generated tokens/s"
    if config.rate is not None and config.calibrate:
        yield "rate, calibrate: only one of these can be given; calibrate=true measures the rate"
