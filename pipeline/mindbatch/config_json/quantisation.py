"""Storage of a folder's weights, by `quantization_config` of its config.json; and opening it."""

from collections.abc import Collection, Mapping
from pathlib import Path

from mindbatch.checkpoint.folders.description_files import (
    GOLDEN_STICK_NAME,
    MODELOPT_NAME,
    description_in,
)
from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, has_file, read_config
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.formats.gguf import POINTER
from mindbatch.checkpoint.gguf.unpacked import open_home
from mindbatch.checkpoint.json_object import read_json_object
from mindbatch.checkpoint.quantised import modelopt
from mindbatch.checkpoint.quantised.ascend import AscendScheme
from mindbatch.checkpoint.quantised.folder import QuantisedFolder
from mindbatch.checkpoint.quantised.method import QuantisationMethod
from mindbatch.checkpoint.quantised.registry import METHODS
from mindbatch.checkpoint.quantised.scheme import Scheme
from mindbatch.config_json.foreign_models import QUANTIZATION, is_described
from mindbatch.config_json.forms import Config
from mindbatch.config_json.reader import ConfigReader
from mindbatch.io.errors import CheckpointError

_MAX_BYTES = 10_000_000


def read_scheme(config: Config, source: str, ignored: Collection[str] = ()) -> Scheme | None:
    """Reads how a folder's matrices are stored; None where they are floats, or by a method that is not read.

    What else the settings hold says how a tool arrived at the numbers; whether these are as they are said to
    be is seen from the tensors.

    ignored: keys of config.json that are to be passed over.

    Raises:
        CheckpointError: every setting that asks for what is not read.
    """
    settings = config.get(QUANTIZATION)
    if not isinstance(settings, Mapping) or QUANTIZATION in ignored:
        return None
    method = settings.get("quant_method")
    known = METHODS.get(method) if isinstance(method, str) else None
    return None if known is None else _read(known, settings, f"{source}: {QUANTIZATION}")


def _read(method: QuantisationMethod, settings: Config, source: str) -> Scheme:
    reader = ConfigReader(settings, source)
    scheme = method.read(reader)
    if reader.errors:
        raise CheckpointError(reader.errors)
    return scheme


def _described(path: Path) -> Scheme:
    """Reads a file beside config.json that says how matrices are stored."""
    if path.name == GOLDEN_STICK_NAME:
        raise CheckpointError(
            f"{path}: is of MindSpore Golden Stick, whose scales of inputs are not read; take the folder of "
            "the original model, or one that msModelSlim wrote"
        )
    if path.name != MODELOPT_NAME:
        return AscendScheme(path)
    content = read_json_object(path, _MAX_BYTES).get("quantization")
    scheme = _read(modelopt.METHODS[0], content if isinstance(content, Mapping) else {}, str(path))
    scheme.source = path.name
    return scheme


def open_quantised(home: Path, ignored: Collection[str] = ()) -> ModelFolder | None:
    """The folder of a whole model whose weights are quantised, or in llama.cpp's files; None for floats.

    Arguments and errors: see `open_whole`.
    """
    if has_file(home, POINTER):
        return open_home(home)
    if not has_file(home, CONFIG_NAME):
        return None
    config = read_config(home)
    if not is_described(home, config):
        return None
    folder = open_whole(home, config, ignored)
    if folder.quantised is not None:
        return folder
    folder.close()
    return None


def open_whole(home: Path, config: Config, ignored: Collection[str] = ()) -> ModelFolder:
    """The folder of a whole model, its weights floats or quantised.

    ignored: keys of config.json that are to be passed over.

    Raises:
        ConfigError, CheckpointError: see `ModelFolder`, `QuantisedFolder`, `read_scheme`.
    """
    scheme = read_scheme(config, str(home / CONFIG_NAME), ignored)
    if scheme is None and (name := description_in(home)) is not None:
        scheme = _described(home / name)
    return ModelFolder(home) if scheme is None else QuantisedFolder(home, scheme)
