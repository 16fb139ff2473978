"""The methods of quantisation that are read, by the names that `quantization_config` gives them."""

from mindbatch.checkpoint.quantised import (
    auto_round,
    awq,
    bitsandbytes,
    compressed_tensors,
    fp8,
    gptq,
    modelopt,
    mxfp4,
)

_MODULES = (compressed_tensors, gptq, awq, auto_round, fp8, modelopt, mxfp4, bitsandbytes)
METHODS = {method.name: method for module in _MODULES for method in module.METHODS}


def read_methods() -> str:
    """Lists the methods, for messages."""
    *titles, last = filter(None, (method.title for method in METHODS.values()))
    return f"{', '.join(titles)} and {last}"
