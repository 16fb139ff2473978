"""qwen3_5_text: Qwen3-Next's mixers with matrices of their own for query and z, and an MLP in every layer.

Also the text part of qwen3_5, whose images are not read.
"""

from collections.abc import Sequence
from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.tensor_spec import Part, fused
from mindbatch.config_json.reader import ConfigReader
from mindbatch.models import llama, qwen3_next


def describe(reader: ConfigReader, default_intermediate: int | None = None) -> Architecture:
    reader.needs("attn_output_gate", [True])
    return qwen3_next.describe_family(reader, default_intermediate)


class DeltaNet(qwen3_next.DeltaNet):
    """Qwen3-Next's, of tensors that are not interleaved."""

    def projections(
        self, a: Architecture, source: str, units: Sequence[int], together: int
    ) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
        heads, hidden = qwen3_next.heads_of(a), a.hidden_size
        qkv = fused(f"{source}.in_proj_qkv.weight", [heads.key_heads * unit for unit in units], hidden, units)
        z = Part(f"{source}.in_proj_z.weight", heads.key_heads * units[2], hidden, unit=units[2])
        beta, decay = (
            Part(f"{source}.in_proj_{which}.weight", heads.value_heads, hidden, unit=together)
            for which in "ba"
        )
        return (*qkv, z), (beta, decay)


class Block(qwen3_next.Block):
    delta_net = DeltaNet


MODEL = replace(
    qwen3_next.MODEL,
    describe=describe,
    tree=llama.with_blocks(Block),
)
