"""AutoRound, where it packs as GPTQ or as AWQ does."""

from collections.abc import Callable, Mapping

from mindbatch.checkpoint.quantised.awq import Awq
from mindbatch.checkpoint.quantised.gptq import Gptq
from mindbatch.checkpoint.quantised.layout import QuantisedLayout
from mindbatch.checkpoint.quantised.method import (
    QuantisationMethod,
    SettingsReader,
    read_bits,
    read_group_size,
)
from mindbatch.checkpoint.quantised.scheme import ByMark, Scheme

_FLOAT_BITS = 16
_Layout = Callable[[int, int | None], QuantisedLayout]
_PACKINGS: dict[str, _Layout] = {
    "auto_round:auto_gptq": Gptq,
    "auto_round": lambda bits, group_size: Gptq(bits, group_size, is_first_format=False),
    "auto_round:gptqmodel": lambda bits, group_size: Gptq(bits, group_size, is_first_format=False),
    "auto_round:auto_awq": lambda bits, group_size: Awq(group_size),
}


def _read(settings: SettingsReader) -> Scheme:
    settings.needs("data_type", ["int"])
    packing = settings.choice("packing_format", {name: name for name in _PACKINGS})
    bits = read_bits(settings, "bits", (4,) if packing.endswith("awq") else (4, 8))
    group_size = read_group_size(settings)
    content = settings.value("extra_config")
    entries = settings.within("extra_config", content or {})
    for name, entry in content.items() if isinstance(content, Mapping) else ():
        own = entries.within(name, entry).value("bits")
        if own is not None and own != bits and not (isinstance(own, int) and own >= _FLOAT_BITS):
            entries.error(name, f"must be of {bits} bits, as the others, or of {_FLOAT_BITS}")
    return ByMark(_PACKINGS[packing](bits, group_size))


METHODS = (QuantisationMethod("auto-round", "AutoRound (packed as GPTQ or AWQ)", _read),)
