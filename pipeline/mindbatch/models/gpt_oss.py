"""gpt_oss: attention with sinks, windows on every other layer, and experts with biases and clamped gates.

Of arrays: see `models.llama`.
"""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture, Experts
from mindbatch.architecture.tensor_spec import Part, Sharding
from mindbatch.config_json.experts import read_routing
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.sizes import windows_by_pattern
from mindbatch.layers.attention import PagedAttention
from mindbatch.layers.experts import Biases, Mixture, Router
from mindbatch.models import llama

WINDOWS_BUT_EVERY = 2


def describe(reader: ConfigReader) -> Architecture:
    reader.needs("swiglu_alpha", [1.702])  # of quick_gelu
    windows = windows_by_pattern(reader, WINDOWS_BUT_EVERY)
    arch = llama.describe_family(reader, windows=windows, bias_key="attention_bias")
    layers = tuple(range(arch.num_layers))
    routing = read_routing(reader, "num_local_experts", is_normalised=True, layers=layers)
    experts = Experts(routing, arch.intermediate_size, layers, limit=reader.number("swiglu_limit"))
    return replace(arch, activation="quick_gelu", has_sinks=True, experts=experts)


class Attention(llama.Attention):
    def __init__(self, a: Architecture, source: str, layer: int, output: str) -> None:
        super().__init__(a, source, layer, output)
        self.attend = PagedAttention(a, layer, f"{source}.sinks")


class SparseMlp(Mixture):
    """Experts whose gates and ups are one tensor of the checkpoint, and whose other matrices are another."""

    def __init__(self, a: Architecture, source: str) -> None:
        settings = a.experts
        assert settings is not None
        count, inner, hidden = settings.routing.experts, settings.intermediate_size, a.hidden_size
        router = Router(f"{source}.router.weight", count, hidden)
        super().__init__(router, settings.routing, inner, a.activation, settings.limit)
        up, down = f"{source}.experts.gate_up_proj", f"{source}.experts.down_proj"
        ups = [Part(up, 2 * inner, hidden, transposed=True, unit=2, matrix=number) for number in range(count)]
        downs = [Part(down, hidden, inner, transposed=True, matrix=number) for number in range(count)]
        self.take_stacks(ups, downs, count)
        self.biases = [
            Biases(Part(f"{source}.router.bias", count)),
            Biases(Part(f"{up}_bias", count, 2 * inner), Sharding.INPUTS),
            Biases(Part(f"{down}_bias", count, hidden)),
        ]


class Block(llama.Block):
    attention_type = Attention

    def __init__(self, a: Architecture, layer: int) -> None:
        super().__init__(a, layer)
        self.mlp = SparseMlp(a, self.names.in_layer(layer, "mlp"))


MODEL = replace(
    llama.MODEL,
    describe=describe,
    tree=llama.with_blocks(Block),
)
