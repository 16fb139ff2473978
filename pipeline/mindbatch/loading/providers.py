"""Chooses the provider that runs a model, and opens the folders of the model and of its assistant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mindbatch.backends import native
from mindbatch.checkpoint.folders.folder_files import existing_folder
from mindbatch.config.model_schema import ModelConfig, ignored_keys
from mindbatch.engine.settings import EngineSettings
from mindbatch.io.errors import ConfigError
from mindbatch.parallel.topology import WHOLE, WHOLE_MODEL, RankPart, TensorSlice
from mindbatch.prompts.tokenizer import Tokenizer

if TYPE_CHECKING:  # MindSpore is imported where a model is loaded
    from mindbatch.backends.adapter_weights import FittedAdapters
    from mindbatch.backends.model import Model
    from mindbatch.checkpoint.folders.model_folder import ModelFolder, StoredWeights
    from mindbatch.checkpoint.lora.adapter import LoraAdapter
    from mindbatch.checkpoint.lora.merge import MergedWeights
    from mindbatch.config_json.reader import IgnoredKeys
    from mindbatch.kernels.interface import Kernels
    from mindbatch.kernels.shapes import CacheGeometry
    from mindbatch.model_spec.model_spec import ModelSpec


class Provider(Protocol):
    """Opens folders of models and loads them: `backends.native`, or `backends.mindformers.provider`."""

    def open_folder(
        self, home: Path, model_type: str, ignore: IgnoredKeys, part: RankPart
    ) -> tuple[ModelFolder, ModelSpec]:
        """Reads config.json and the headers of the weight files.

        part: the rank and stage to load, from a whole folder or from rank folders of `mindbatch reshard`.

        Raises:
            CheckpointError: the provider does not run the model, or tensors are missing or unexpected.
            ConfigError: `model_type` contradicts config.json, or the model cannot be divided in this way.
        """
        ...

    def fit_adapters(
        self, spec: ModelSpec, adapters: Mapping[str, LoraAdapter], max_loaded: int | None = None
    ) -> FittedAdapters:
        """Checks adapters against the whole model. max_loaded: how many are in memory at once; None for all.

        Raises:
            CheckpointError: lists the misfits of all adapters.
        """
        ...

    def merge(self, spec: ModelSpec, folder: ModelFolder, adapter: LoraAdapter) -> MergedWeights:
        """Plans the merge of an adapter into the weights while they are read.

        Raises:
            CheckpointError: the adapter does not fit the model, or cannot be merged.
            ConfigError: the adapter was merged into the folder before.
        """
        ...

    def load(
        self,
        spec: ModelSpec,
        weights: StoredWeights,
        kernels: Kernels,
        geometry: CacheGeometry,
        progress: Callable[[int, int], None] | None = None,
        adapters: FittedAdapters | None = None,
    ) -> Model:
        """Reads the weights of the spec's rank; `progress` is called with (tensors done, tensors in all).

        adapters: adapters that may be loaded into slots later.

        Raises:
            CheckpointError: a tensor that is damaged or does not fit.
            ConfigError: the model cannot be run on this device.
        """
        ...


class OpenedFolder(NamedTuple):
    """A folder and the description of its model; the weights are not read yet."""

    folder: ModelFolder
    spec: ModelSpec


def provider_of(model: ModelConfig) -> Provider:
    if model.provider == "mindformers":
        from mindbatch.backends.mindformers import provider

        return provider
    return native


def open_model(model: ModelConfig, part: RankPart = WHOLE_MODEL) -> OpenedFolder:
    """Opens the model's folder with its provider. Raises ConfigError, too, if there is no such folder."""
    return _open(model, model.checkpoint_name_or_path, model.type, part)


def open_assistant(model: ModelConfig, shard: TensorSlice = WHOLE) -> OpenedFolder:
    """Opens `model.assistant`. Its type is read from its config.json, and all its layers are on one stage."""
    try:
        return _open(model, model.assistant, "auto", RankPart(shard))
    except ConfigError as error:
        raise ConfigError(f"model.assistant={model.assistant}: {line}" for line in error.lines) from error


def _open(model: ModelConfig, path: str | None, model_type: str, part: RankPart) -> OpenedFolder:
    home = existing_folder(path or "")
    return OpenedFolder(*provider_of(model).open_folder(home, model_type, ignored_keys(model), part))


TokenIds = Mapping[str, int]


def assistant_settings(assistant: OpenedFolder, target: EngineSettings) -> EngineSettings:
    return replace(target, seq_length=min(target.seq_length, assistant.spec.max_positions), num_states=0)


def find_assistant(
    model: ModelConfig, target: OpenedFolder, tokenizer: Tokenizer | None, shard: TensorSlice = WHOLE
) -> OpenedFolder | None:
    """Opens the assistant of a model and checks its vocabulary; returns None if there is no assistant.

    tokenizer: the model's; without it only the sizes of the vocabularies are compared.
    shard: the tensor-parallel rank.

    Raises:
        CheckpointError: the assistant's folder is damaged, or has no supported model.
        ConfigError: the vocabularies differ, or the model cannot have an assistant.
    """
    if model.assistant is None:
        return None
    own = open_assistant(model, shard)
    for opened in (target, own):
        if opened.spec.is_prefix_bidirectional:
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
    vocabularies: tuple[TokenIds | None, TokenIds | None],
) -> None:
    """Compares the vocabularies of a model and its assistant: their sizes, and the tokens with their ids.

    Raises:
        ConfigError: names both folders and the difference.
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
        (token for token, _ in ours.items() ^ theirs.items()), key=lambda token: _position(token, ours)
    )
    token = differing[0]
    count = len(set(differing))
    raise ConfigError(
        f"model.assistant={assistant}: its tokenizer differs from that of {target} in {count} tokens, "
        f"such as {token!r} ({_named(token, ours)} in the model, {_named(token, theirs)} in the assistant); "
        "an assistant must have the model's own vocabulary"
    )


def _position(token: str, vocabulary: TokenIds) -> tuple[int, str]:
    return vocabulary.get(token, len(vocabulary)), token


def _named(token: str, vocabulary: TokenIds) -> str:
    return f"id {vocabulary[token]}" if token in vocabulary else "unknown"
