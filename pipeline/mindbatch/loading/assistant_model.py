"""The assistant as its folder describes it, found fit for the model before any weights are read."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mindbatch.config.model_schema import ModelConfig
from mindbatch.engine.settings import EngineSettings
from mindbatch.io.errors import ConfigError
from mindbatch.loading.providers import OpenedFolder, open_assistant
from mindbatch.parallel.topology import WHOLE, TensorSlice
from mindbatch.prompts.tokenizer import Tokenizer

Vocabulary = Mapping[str, int]


def assistant_settings(assistant: OpenedFolder, target: EngineSettings) -> EngineSettings:
    """The limits of the assistant's own runner, given those of the model."""
    return replace(target, seq_length=min(target.seq_length, assistant.spec.max_positions), num_states=0)


def find_assistant(
    model: ModelConfig, target: OpenedFolder, tokenizer: Tokenizer | None, shard: TensorSlice = WHOLE
) -> OpenedFolder | None:
    """The model that `model.assistant` names, which has the model's vocabulary; None if it names none.

    tokenizer: the model's; without one only the sizes of the vocabularies are compared.
    shard: see `open_assistant`.

    Raises:
        CheckpointError: it does not hold a model that is understood, or is damaged.
        ConfigError: its vocabulary is not the model's.
    """
    if model.assistant is None:
        return None
    own = open_assistant(model, shard)
    for opened in (target, own):
        if opened.spec.sees_ahead:
            raise ConfigError(
                f"model.assistant={model.assistant}: {opened.folder.path} is a {opened.spec.model_type}, and "
                "a model whose prompts are not causal neither has an assistant nor is one; remove it, or use "
                "decoding.prompt_lookup_num_tokens"
            )
    if own.spec.state_bytes:
        raise ConfigError(
            f"model.assistant={model.assistant}: {own.folder.path} is a {own.spec.model_type}, whose "
            "recurrent layers cannot go back to where a draft was refused; name a model without any, or use "
            "decoding.prompt_lookup_num_tokens"
        )
    theirs = None if tokenizer is None else Tokenizer.load(own.folder.path)
    vocabularies = [None if loaded is None else loaded.vocabulary() for loaded in (tokenizer, theirs)]
    refuse_unfit(
        *(target.folder.path, own.folder.path),
        (target.spec.vocab_size, own.spec.vocab_size),
        (vocabularies[0], vocabularies[1]),
    )
    return own


def refuse_unfit(
    target: Path,
    assistant: Path,
    vocab_sizes: tuple[int, int],
    vocabularies: tuple[Vocabulary | None, Vocabulary | None],
) -> None:
    """Checks a model folder and its assistant's: sizes of the logits, and token texts with their ids.

    Raises:
        ConfigError: both folders, and what differs.
    """
    if vocab_sizes[0] != vocab_sizes[1]:
        raise ConfigError(
            f"model.assistant={assistant}: its vocabulary has {vocab_sizes[1]} tokens and that of "
            f"{target} has {vocab_sizes[0]}; an assistant must have the model's own vocabulary"
        )
    ours, theirs = vocabularies
    if ours is None or theirs is None or ours == theirs:
        return
    differing = sorted(
        (token for token, _ in ours.items() ^ theirs.items()), key=lambda token: _place(token, ours)
    )
    token = differing[0]
    count = len(set(differing))
    raise ConfigError(
        f"model.assistant={assistant}: its tokenizer differs from that of {target} in {count} tokens, "
        f"such as {token!r} ({_named(token, ours)} in the model, {_named(token, theirs)} in the assistant); "
        "an assistant must have the model's own vocabulary"
    )


def _place(token: str, vocabulary: Vocabulary) -> tuple[int, str]:
    return vocabulary.get(token, len(vocabulary)), token


def _named(token: str, vocabulary: Vocabulary) -> str:
    return f"id {vocabulary[token]}" if token in vocabulary else "unknown"
