"""The methods of quantisation that are read, by the names that `quantization_config` gives them."""

from mindbatch.checkpoint.quantised import awq, compressed_tensors, gptq, mxfp4

METHODS = {
    method.name: method for method in (compressed_tensors.METHOD, gptq.METHOD, awq.METHOD, mxfp4.METHOD)
}


def read_methods() -> str:
    """Lists the methods, for messages."""
    *titles, last = (method.title for method in METHODS.values())
    return f"{', '.join(titles)} and {last}"
