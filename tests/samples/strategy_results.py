"""Results as an engine would return them, made of a few tokens."""

from collections.abc import Sequence

from mindbatch.engine.request import CompletionOutput, RequestOutput

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def completion(
    index: int, tokens: Sequence[int], logprob: float, text: str | None = None
) -> CompletionOutput:
    shown = " ".join(WORDS[token] for token in tokens) if text is None else text
    return CompletionOutput(index, shown, list(tokens), "length", logprob)


def result(key: int, *outputs: CompletionOutput, prompt: str = "Count") -> RequestOutput:
    return RequestOutput(str(key), prompt, [5, 6], list(outputs))
