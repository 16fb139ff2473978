"""What each rank computes of an adapter: together it is the whole addition; biases are added to the sum."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from adapter_folders import FULL_SHAPES, write_full_adapter

from mindbatch.architecture.tensor_spec import Part, TensorSpec
from mindbatch.backends.adapter_weights import AdapterTargets, fit_beside, with_head
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.checkpoint.lora.modules import LowRank, ModuleKind
from mindbatch.checkpoint.lora.plan import BaseTensors, LoraPlan
from mindbatch.io.errors import CheckpointError
from mindbatch.model_spec.registry import describe, tensor_specs
from mindbatch.parallel.topology import TensorSlice

GPT2 = {"model_type": "gpt2", "vocab_size": 11, "n_embd": 8, "n_head": 2, "n_layer": 2, "n_positions": 4}
SPECS = with_head(tensor_specs(describe(GPT2)))
SOURCES = [part.source for spec in SPECS for part in spec.parts]
INPUTS, OUTPUTS = {"c_attn": 8, "c_proj": 32, "lm_head": 8}, {"c_attn": 24, "c_proj": 8, "lm_head": 11}


def places(size, rank, specs=SPECS):
    module = SimpleNamespace(kind=ModuleKind.LINEAR, rank=2)
    adapter = LoraPlan(None, dict.fromkeys(SOURCES, module), BaseTensors({}))
    return AdapterTargets(specs, TensorSlice(rank, size), [adapter]).targets


def whole(module):
    chance = np.random.default_rng(3)
    sizes = {"a": (2, INPUTS[module]), "b": (OUTPUTS[module], 2), "bias": (OUTPUTS[module],)}
    return LowRank(scaling=0.5, **{name: chance.normal(size=size) for name, size in sizes.items()})


def product(part, inner):
    return inner @ part.b.T + (0 if part.offset is None else part.offset)


@pytest.mark.parametrize("size", [1, 2])
def test_parts_of_the_inputs_add_up(size):
    added = whole("c_proj")
    x = np.random.default_rng(4).normal(size=(3, INPUTS["c_proj"]))
    cuts = [places(size, rank)["transformer.h.0.mlp.c_proj.weight"] for rank in range(size)]
    inner = sum(x[:, place.inputs] @ place.cut(added).a.T for place in cuts)
    for place in cuts:
        found = product(place.cut(added), inner)
        np.testing.assert_allclose(found, 0.5 * (x @ added.a.T @ added.b.T + added.bias))


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(("module", "tensor"), [("c_attn", "h.0.attn.c_attn"), ("lm_head", "lm_head")])
def test_parts_of_the_outputs_lie_as_the_rank_has_them(size, module, tensor):
    """Queries, keys and values are cut each by itself."""
    added = whole(module)
    x = np.random.default_rng(4).normal(size=(3, INPUTS[module]))
    expected = 0.5 * (x @ added.a.T @ added.b.T + added.bias)
    [name] = {source for source in SOURCES if source.endswith(f"{tensor}.weight")}
    for rank in range(size):
        part = places(size, rank)[name].cut(added)
        found = product(part, x @ part.a.T)
        if module == "c_attn":
            heads = expected.reshape(3, 3, size, -1)[:, :, rank].reshape(3, -1)
        else:
            heads = expected[:, rank * 6 : (rank + 1) * 6] if size == 2 else expected
        np.testing.assert_allclose(found, heads)


NAMES = {"embed_tokens.weight": "embedding.weight", "lm_head.weight": "head.weight"}


def test_forms_that_cannot_act_beside_the_model(tmp_path: Path) -> None:
    specs = [TensorSpec(NAMES.get(name, name), (Part(name, *shape),)) for name, shape in FULL_SHAPES.items()]
    with pytest.raises(CheckpointError) as caught:
        fit_beside(specs, {"one": open_adapter(write_full_adapter(tmp_path))}, BaseTensors(FULL_SHAPES))
    told = str(caught.value)
    assert "module 'lm_head': an adapter of it is not supported beside the model; merge it" in told
    assert "q_proj': an adapter of it is not supported beside the model; merge it" in told
