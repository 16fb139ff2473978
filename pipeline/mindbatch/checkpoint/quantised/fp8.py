"""FP8 and MXFP8, as DeepSeek, Qwen and others publish them."""

from mindbatch.checkpoint.quantised.eight_bits import BY_OUTPUT, FP8, WHOLE, Block, EightBits
from mindbatch.checkpoint.quantised.method import QuantisationMethod, SettingsReader
from mindbatch.checkpoint.quantised.scheme import ByMark, Scheme

MX_GROUP = 32


def read_block(settings: SettingsReader, key: str) -> Block:
    """Reads the numbers of outputs and inputs of a block; where they are none, an error is noted."""
    block = settings.value(key)
    if isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block):
        return block[0], block[1]
    settings.error(key, "must be two positive numbers, the outputs and the inputs of a block")
    return 1, 1


def mxfp8(marks: str) -> EightBits:
    return EightBits(FP8, marks, (1, MX_GROUP), has_exponents=True)


def _fp8(settings: SettingsReader) -> Scheme:
    settings.needs("fmt", ["e4m3", "float8_e4m3fn"])
    settings.needs("activation_scheme", ["dynamic", "static"])
    if settings.value("weight_block_size") is not None:
        return ByMark(EightBits(FP8, "weight_scale_inv", read_block(settings, "weight_block_size")))
    return ByMark(*(EightBits(FP8, marks, WHOLE) for marks in ("weight_scale_inv", "weight_scale")))


def _mxfp8(settings: SettingsReader) -> Scheme:
    settings.needs("weight_block_size", [[1, MX_GROUP]])
    return ByMark(*map(mxfp8, ("weight_scale_inv", "weight_scale")))


METHODS = (
    QuantisationMethod("fp8", "FP8", _fp8),
    QuantisationMethod("fbgemm_fp8", "", lambda settings: ByMark(EightBits(FP8, "weight_scale", BY_OUTPUT))),
    QuantisationMethod("mxfp8", "MXFP8", _mxfp8),
)
