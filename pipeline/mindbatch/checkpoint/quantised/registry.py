"""The methods of quantisation that are read, by the names that `quantization_config` gives them."""

from mindbatch.checkpoint.quantised import awq, compressed_tensors, fp8, gptq, mxfp4

_ALL = (compressed_tensors.METHOD, gptq.METHOD, awq.METHOD, fp8.METHOD, mxfp4.METHOD)
METHODS = {method.name: method for method in _ALL}


def read_methods() -> str:
    """Lists the methods, for messages."""
    *titles, last = (method.title for method in METHODS.values())
    return f"{', '.join(titles)} and {last}"
