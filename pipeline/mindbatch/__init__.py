"""Offline batch text generation with MindSpore and MindFormers."""

# With `python -m mindbatch` the current folder is in the import path until __main__ has removed it: what is
# imported up to there must be modules that the interpreter has loaded by then.
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mindbatch.async_llm import AsyncLLM
    from mindbatch.decoding import DecodingParams
    from mindbatch.engine.request import CompletionOutput, RequestOutput, StreamEvent
    from mindbatch.engine.streaming import TextStreamer
    from mindbatch.io.errors import CheckpointError, ConfigError, MindBatchError, PromptError
    from mindbatch.llm import LLM

# Imported on first use: `import mindbatch` stays instant.
_HOMES = {
    "LLM": "mindbatch.llm",
    "AsyncLLM": "mindbatch.async_llm",
    "DecodingParams": "mindbatch.decoding",
    "TextStreamer": "mindbatch.engine.streaming",
    "RequestOutput": "mindbatch.engine.request",
    "CompletionOutput": "mindbatch.engine.request",
    "StreamEvent": "mindbatch.engine.request",
    "MindBatchError": "mindbatch.io.errors",
    "ConfigError": "mindbatch.io.errors",
    "CheckpointError": "mindbatch.io.errors",
    "PromptError": "mindbatch.io.errors",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "CheckpointError",
    "CompletionOutput",
    "ConfigError",
    "DecodingParams",
    "MindBatchError",
    "PromptError",
    "RequestOutput",
    "StreamEvent",
    "TextStreamer",
]


def __getattr__(name: str) -> "Any":
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mindbatch' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
