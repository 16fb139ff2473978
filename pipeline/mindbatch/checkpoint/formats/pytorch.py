"""PyTorch's files of a state_dict: pickles, which are read as data."""

from mindbatch.checkpoint.formats.weight_format import WeightFormat, lazily

_INDEX = "pytorch_model.bin.index.json"

PYTORCH = WeightFormat(
    name="pytorch",
    title="PyTorch",
    suffixes=(".bin", ".pt", ".pth"),
    model_files=("pytorch_model.bin", _INDEX, "*.pth"),
    not_models=("consolidated.*", "rng_state*"),  # of Meta's own format, and of trainings
    indexes=(_INDEX,),
    is_pickle=True,
    open=lazily("pytorch_file", "open_pytorch"),
)
