"""Adapters beside a model: what cannot act there is refused, and never left out."""

from pathlib import Path

import pytest
from adapter_folders import FULL_SHAPES, write_full_adapter

from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.checkpoint.lora.plan import BaseTensors
from mindbatch.io.errors import CheckpointError
from mindbatch.models.adapter_weights import fit_beside
from mindbatch.models.tensor_spec import Part, TensorSpec

NAMES = {"embed_tokens.weight": "embedding.weight", "lm_head.weight": "head.weight"}


def test_forms_that_cannot_act_beside_the_model(tmp_path: Path) -> None:
    specs = [TensorSpec(NAMES.get(name, name), (Part(name, *shape),)) for name, shape in FULL_SHAPES.items()]
    with pytest.raises(CheckpointError) as caught:
        fit_beside(specs, {"one": open_adapter(write_full_adapter(tmp_path))}, BaseTensors(FULL_SHAPES))
    told = str(caught.value)
    assert "module 'lm_head': an adapter of it is not supported beside the model; merge it" in told
    assert "q_proj': an adapter of it is not supported beside the model; merge it" in told
