"""Resolves models that are given by a name on a hub, and fetches those that are missing."""

import sys
from collections.abc import Iterator, Mapping
from functools import partial

from mindbatch.config.error_log import shown
from mindbatch.config.model_schema import ModelConfig
from mindbatch.config.paths import PathCheck, folder_error, model_folder_error, resolved
from mindbatch.hub.models import MODEL_SCOPE, cached_model, fetch_model, fetched, is_name, is_revision
from mindbatch.io.errors import MindBatchError
from mindbatch.io.installation import is_installed, missing

FOLDERS: Mapping[str, PathCheck] = {
    "checkpoint_name_or_path": model_folder_error,
    "tokenizer": folder_error,
    "assistant": model_folder_error,
}
"""The keys of the section `model` that name a folder."""

NO_MODEL = "model.checkpoint_name_or_path: must be given: the folder of a model (model=tiny_gpt2 is shipped)"


def resolve_model_paths(model: ModelConfig) -> list[str]:
    """Resolves `shipped:`, ~ and the names of models in the hub's cache; returns the errors.

    Models that `unfetched` lists keep their names.
    """
    errors = [] if model.checkpoint_name_or_path is not None else [NO_MODEL]
    left = unfetched(model)
    for name, error_of in FOLDERS.items():
        if name not in left:
            text, key = getattr(model, name), f"model.{name}"
            of_hub = partial(resolved, is_model=True, revision=model.revision, hub=model.hub, is_fetched=True)
            setattr(model, name, of_hub(key, text, error_of, errors))
    return errors


def unfetched(model: ModelConfig) -> list[str]:
    """Lists the keys whose models are not in the cache: they are fetched, or the user decides."""
    return [name for name in FOLDERS if (text := getattr(model, name)) and _is_unfetched(text, model)]


def _is_unfetched(text: str, model: ModelConfig) -> bool:
    if not is_name(text):
        return False
    folder = cached_model(text, model.revision, model.hub)
    if model.download:
        return folder is None or fetched(folder) is None
    return folder is None and sys.stdin.isatty() and sys.stderr.isatty()


def fetch_models(model: ModelConfig) -> list[str]:
    """Fetches the models that `unfetched` lists, and sets their keys to the folders; returns the errors.

    Raises:
        MindBatchError: a model cannot be fetched, or the user declines.
    """
    if not (left := unfetched(model)):
        return []
    for name in left:
        text = getattr(model, name)
        try:
            folder = fetch_model(
                text, model.revision, model.download_files, asks=not model.download, hub=model.hub
            )
        except MindBatchError as error:
            raise type(error)(f"model.{name}={problem}" for problem in error.lines) from error
        setattr(model, name, str(folder))
    return resolve_model_paths(model)


def hub_errors(model: ModelConfig) -> Iterator[str]:
    if model.revision is not None and not is_revision(model.revision):
        yield f"model.revision={shown(model.revision)}: must be the name of a branch or tag, or a commit"
    if model.hub == MODEL_SCOPE and model.download and not is_installed("modelscope_hub"):
        yield f"model.hub={MODEL_SCOPE}: {missing('modelscope_hub')}"
