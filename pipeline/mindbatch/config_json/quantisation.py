"""Storage of a folder's weights, by `quantization_config` of its config.json; and opening it."""

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.quantised.folder import QuantisedFolder
from mindbatch.checkpoint.quantised.layout import QuantisedLayout
from mindbatch.checkpoint.quantised.methods import (
    AWQ_BITS,
    Awq,
    CompressedInt8,
    CompressedPacked,
    Gptq,
    Mxfp4,
)
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
    read = _METHODS.get(method) if isinstance(method, str) else None
    if read is None:
        return None
    reader = ConfigReader(settings, f"{source}: {QUANTIZATION}")
    layout = read(reader)
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


def _gptq(reader: ConfigReader) -> QuantisedLayout:
    bits, group_size = _bits(reader, "bits"), _group_size(reader)
    has_order = reader.flag("desc_act")
    form = reader.value("checkpoint_format") or reader.value("format") or "gptq"
    if form not in ("gptq", "gptq_v2"):
        reader.error("checkpoint_format", "must be gptq or gptq_v2")
    reader.needs("pack_dtype", ["int32"])
    reader.needs("data_type", ["int"])
    if reader.value("dynamic"):
        reader.error("dynamic", "modules with settings of their own are not read")
    return Gptq(bits, group_size, form == "gptq", has_order)


def _awq(reader: ConfigReader) -> QuantisedLayout:
    _bits(reader, "bits", (AWQ_BITS,))
    if not reader.flag("zero_point"):
        reader.error("zero_point", "must be true")
    form = reader.value("version") or reader.value("checkpoint_format") or "gemm"
    if str(form).lower() != "gemm":
        reader.error("version", "must be gemm")
    return Awq(_group_size(reader))


def _bits(reader: ConfigReader, key: str, allowed: tuple[int, ...] = (4, 8)) -> int:
    """Reads the bits of a number; the first that is allowed where an error is noted."""
    bits = reader.value(key)
    if isinstance(bits, int) and bits in allowed:
        return bits
    reader.error(key, f"must be {' or '.join(map(str, allowed))}")
    return allowed[0]


def _group_size(reader: ConfigReader) -> int | None:
    return None if reader.value("group_size") == -1 else reader.positive("group_size")


def _compressed(reader: ConfigReader) -> QuantisedLayout:
    form = reader.choice("format", {form_name: form_name for form_name in _FORMATS})
    for key in ("kv_cache_scheme", "transform_config"):
        if reader.value(key):
            reader.error(key, "must be null")
    sparsity = reader.value("sparsity_config")
    if isinstance(sparsity, Mapping) and sparsity.get("format", "dense") != "dense":
        reader.error("sparsity_config", "must be of format dense")
    layouts = {_FORMATS[form](weights) for weights in _group_weights(reader, form)}
    if len(layouts) != 1:
        reader.error("config_groups", "must hold a group, and all must have the same weights")
    return min(layouts, key=str, default=CompressedInt8())


def _group_weights(reader: ConfigReader, form: str) -> Iterator[ConfigReader]:
    """The settings of each group's weights, of groups whose other settings are checked."""
    groups_by_name = reader.value("config_groups")
    groups = reader.within("config_groups", groups_by_name)
    for name, scheme in groups_by_name.items() if isinstance(groups_by_name, Mapping) else ():
        group = groups.within(name, scheme)
        group.needs("format", [form])
        group.needs("output_activations", [None])
        activations = group.value("input_activations")
        if activations is not None:  # rounded as they come, they need nothing from the folder
            rounded = group.within("input_activations", activations)
            rounded.needs("num_bits", [8])
            rounded.needs("type", ["int"])
            rounded.needs("dynamic", [True])
        yield group.within("weights", group.value("weights"))


def _int8(weights: ConfigReader) -> QuantisedLayout:
    weights.needs("num_bits", [8])
    weights.needs("symmetric", [True])
    return CompressedInt8(_scale_groups(weights))


def _packed(weights: ConfigReader) -> QuantisedLayout:
    bits = _bits(weights, "num_bits")
    is_symmetric = weights.value("symmetric") is not False
    has_order = weights.value("actorder") in (True, "group", "dynamic")
    return CompressedPacked(bits, _scale_groups(weights), is_symmetric, has_order)


def _scale_groups(weights: ConfigReader) -> int | None:
    """Number of inputs that have a scale together; None for all."""
    weights.needs("type", ["int"])
    strategy = weights.choice("strategy", {"channel": "channel", "group": "group"})
    return weights.positive("group_size") if strategy == "group" else None


_METHODS: dict[str, Callable[[ConfigReader], QuantisedLayout]] = {
    "awq": _awq,
    "compressed-tensors": _compressed,
    "gptq": _gptq,
    "mxfp4": lambda reader: Mxfp4(),
}
_FORMATS: dict[str, Callable[[ConfigReader], QuantisedLayout]] = {
    "int-quantized": _int8,
    "pack-quantized": _packed,
}
