"""The assistant as its folder describes it, found fit for the model before any weights are read."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.config.schema import ModelConfig
from mindbatch.engine.assistant_fit import refuse_unfit
from mindbatch.engine.described import open_assistant
from mindbatch.engine.settings import EngineSettings
from mindbatch.models.architecture import Architecture
from mindbatch.prompts.tokenizer import Tokenizer


@dataclass(frozen=True)
class AssistantFolder:
    """A smaller model that has the vocabulary of the one it drafts for."""

    folder: ModelFolder
    architecture: Architecture

    def settings(self, target: EngineSettings) -> EngineSettings:
        """The limits of its own runner, given the model's."""
        return dataclasses.replace(target, seq_length=min(target.seq_length, self.architecture.max_positions))


def find_assistant(
    model: ModelConfig, target: ModelFolder, arch: Architecture, tokenizer: Tokenizer | None
) -> AssistantFolder | None:
    """The folder that `model.assistant` names; None if it names none.

    Raises:
        CheckpointError: it does not hold a model that is understood, or is damaged.
        ConfigError: its vocabulary is not the model's.
    """
    if model.assistant is None:
        return None
    folder, own = open_assistant(model)
    theirs = Tokenizer.load(folder.path)
    vocabularies = [None if each is None else each.vocabulary() for each in (tokenizer, theirs)]
    refuse_unfit(
        target.path, folder.path, (arch.vocab_size, own.vocab_size), (vocabularies[0], vocabularies[1])
    )
    return AssistantFolder(folder, own)
