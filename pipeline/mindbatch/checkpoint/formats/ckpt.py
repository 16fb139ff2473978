"""MindSpore's .ckpt files."""

from mindbatch.checkpoint.formats.weight_format import WeightFormat, lazily

CKPT = WeightFormat(
    name="ckpt",
    title="MindSpore",
    suffixes=(".ckpt",),
    open=lazily("ckpt_file", "open_ckpt"),
    lay_out=lazily("ckpt_file", "ckpt_layout"),
    rank_file="checkpoint_{rank}.ckpt",
)
