"""Storage of a folder's weights, by `quantization_config` of its config.json; and opening it."""

from collections.abc import Collection, Mapping
from pathlib import Path

from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.quantised.folder import QuantisedFolder
from mindbatch.checkpoint.quantised.layout import QuantisedLayout
from mindbatch.checkpoint.quantised.registry import METHODS
from mindbatch.config_json.foreign_models import QUANTIZATION
from mindbatch.config_json.forms import Config
from mindbatch.config_json.reader import ConfigReader
from mindbatch.io.errors import CheckpointError


def read_layout(config: Config, source: str, ignored: Collection[str] = ()) -> QuantisedLayout | None:
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
    if known is None:
        return None
    reader = ConfigReader(settings, f"{source}: {QUANTIZATION}")
    layout = known.read(reader)
    if reader.errors:
        raise CheckpointError(reader.errors)
    return layout


def open_whole(home: Path, config: Config, source: str, ignored: Collection[str] = ()) -> ModelFolder:
    """The folder of a whole model, its weights floats or quantised.

    Raises:
        ConfigError, CheckpointError: see `ModelFolder`, `QuantisedFolder`, `read_layout`.
    """
    layout = read_layout(config, source, ignored)
    return ModelFolder(home) if layout is None else QuantisedFolder(home, layout)
