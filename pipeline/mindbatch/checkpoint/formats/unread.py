"""Formats known by suffix alone: the error of a folder that has only such files names them."""

from mindbatch.checkpoint.formats.weight_format import WeightFormat

CONVERSION_HINT = (
    "pickles can run code and are never executed; {needed}; convert those from a safe source with "
    "transformers' model.save_pretrained(NEW_FOLDER, safe_serialization=True) or "
    "safetensors.torch.save_file(state_dict, 'model.safetensors')"
)

PICKLE = WeightFormat("pickle", "a Python pickle", (".pkl",), is_pickle=True, refusal=CONVERSION_HINT)
UNREAD = (
    PICKLE,
    WeightFormat("keras", "Keras (HDF5)", (".h5",)),
    WeightFormat("flax", "Flax", (".msgpack",)),
    WeightFormat("numpy", "NumPy", (".npz",)),
    WeightFormat("onnx", "ONNX", (".onnx",)),
)
