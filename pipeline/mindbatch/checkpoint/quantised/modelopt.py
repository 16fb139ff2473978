"""NVIDIA's ModelOpt: FP8, MXFP8 and NVFP4, and folders whose matrices differ."""

from collections.abc import Mapping

from mindbatch.checkpoint.quantised.eight_bits import BY_OUTPUT, FP8, WHOLE, EightBits
from mindbatch.checkpoint.quantised.four_bit_floats import Nvfp4Matrix
from mindbatch.checkpoint.quantised.fp8 import mxfp8
from mindbatch.checkpoint.quantised.layout import QuantisedLayout
from mindbatch.checkpoint.quantised.method import QuantisationMethod, SettingsReader
from mindbatch.checkpoint.quantised.scheme import ByMark, ByName, Scheme

MIXED = "MIXED_PRECISION"
_NVFP4 = Nvfp4Matrix("weight")
_LAYOUTS: dict[str, QuantisedLayout] = {
    "FP8": EightBits(FP8, "weight_scale", WHOLE),
    "FP8_PER_CHANNEL_PER_TOKEN": EightBits(FP8, "weight_scale", BY_OUTPUT),
    "FP8_PB_WO": EightBits(FP8, "weight_scale", (128, 128)),
    "MXFP8": mxfp8("weight_scale"),
    "NVFP4": _NVFP4,
    "W4A16_NVFP4": _NVFP4,
}


def _read(settings: SettingsReader) -> Scheme:
    if _algorithm(settings) == MIXED:
        return _mixed(settings)
    layout = _layout_of(settings, MIXED)
    if settings.value("group_size") is not None and layout.group_size is not None:
        settings.needs("group_size", [layout.group_size])
    return ByMark(layout)


def _algorithm(settings: SettingsReader) -> str:
    return str(settings.value("quant_algo")).upper()


def _layout_of(settings: SettingsReader, *others: str) -> QuantisedLayout:
    """The layout of an algorithm; for one that is unknown, an error is noted. others: allowed besides."""
    algorithm = _algorithm(settings)
    if algorithm not in _LAYOUTS:
        settings.error("quant_algo", f"must be one of {', '.join([*_LAYOUTS, *others])}")
    return _LAYOUTS.get(algorithm, _NVFP4)


def _mixed(settings: SettingsReader) -> Scheme:
    """Layers have the layout of their own entry, or of the module that they are in."""
    content = settings.value("quantized_layers")
    entries = settings.within("quantized_layers", content)
    items = content.items() if isinstance(content, Mapping) else ()
    layouts = {name: _layout_of(entries.within(name, entry)) for name, entry in items}
    if not layouts:
        settings.error("quantized_layers", "must say how each layer is stored")

    def chosen(module: str) -> QuantisedLayout | None:
        parts = module.split(".")
        around = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        return next((layouts[name] for name in around if name in layouts), None)

    return ByName(layouts.values(), chosen)


METHODS = (QuantisationMethod("modelopt", "ModelOpt (FP8, MXFP8, NVFP4)", _read),)
