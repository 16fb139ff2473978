"""Adapted and saved embeddings and heads, also where both are one tensor; lists of adapters."""

import numpy as np
import pytest
from adapter_folders import INPUTS, RANK, SHAPES, matrices, write_adapter

from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.checkpoint.lora.modules import ModuleKind
from mindbatch.checkpoint.lora.plan import BaseTensors, adapted_weights
from mindbatch.io.errors import CheckpointError

EMBEDDING = "model.embed_tokens"


def vocabulary_tensors(**arrays):
    return matrices() | {
        f"base_model.model.{name.replace('__', '.')}": array for name, array in arrays.items()
    }


def test_embeddings_and_saved_weights(tmp_path):
    """Also below an adapted embedding; a head that is the same tensor gets what PEFT loads."""
    a, b = np.ones((RANK, 7), np.float32), np.ones((INPUTS, RANK), np.float32)
    base, head = np.full((7, INPUTS), 2, np.float32), np.full((7, INPUTS), 3, np.float32)
    low = {f"{EMBEDDING}.lora_embedding_A": a, f"{EMBEDDING}.lora_embedding_B": b}
    targets = ["q_proj", "v_proj", "embed_tokens"]
    shapes, tied = SHAPES | {f"{EMBEDDING}.weight": (7, INPUTS)}, {"lm_head.weight": f"{EMBEDDING}.weight"}

    adapter = open_adapter(write_adapter(tmp_path / "low", vocabulary_tensors(**low), target_modules=targets))
    module = adapted_weights(adapter, BaseTensors(shapes, tied=tied))[f"{EMBEDDING}.weight"]
    assert (module.kind, module.rank, module.inputs, module.outputs) == (
        ModuleKind.EMBEDDING,
        RANK,
        7,
        INPUTS,
    )
    assert "lm_head.weight" not in adapted_weights(adapter, BaseTensors(shapes, tied=tied))

    below = vocabulary_tensors(**low, **{f"{EMBEDDING}.base_layer.weight": base})
    adapter = open_adapter(write_adapter(tmp_path / "below", below, target_modules=targets))
    found = adapted_weights(adapter, BaseTensors(shapes, tied=tied))
    assert found[f"{EMBEDDING}.weight"].kind is found["lm_head.weight"].kind is ModuleKind.WHOLE
    assert (found[f"{EMBEDDING}.weight"].whole_weight() == 2 + 1.5 * RANK).all()
    assert (found["lm_head.weight"].whole_weight() == 2).all()

    saved = vocabulary_tensors(lm_head__weight=head)
    adapter = open_adapter(write_adapter(tmp_path / "saved", saved, modules_to_save=["lm_head"]))
    found = adapted_weights(adapter, BaseTensors(shapes, tied=tied))
    assert (found["lm_head.weight"].whole_weight() == 3).all()
    assert f"{EMBEDDING}.weight" not in found
    with pytest.raises(CheckpointError, match="the model has no 'lm_head.weight'"):
        adapted_weights(adapter, BaseTensors(shapes))


def test_all_linear_leaves_head_and_embedding_out(tmp_path):
    a, b = np.ones((RANK, INPUTS), np.float32), np.ones((7, RANK), np.float32)
    tensors = vocabulary_tensors(**{"lm_head.lora_A.weight": a, "lm_head.lora_B.weight": b})
    with pytest.raises(CheckpointError, match="module 'lm_head' is none of target_modules, 'all-linear'"):
        open_adapter(write_adapter(tmp_path, tensors, target_modules="all-linear"))


def test_two_names_for_one_module_are_refused(tmp_path):
    other = {name.replace(".model.model.", ".model."): array for name, array in matrices().items()}
    adapter = open_adapter(write_adapter(tmp_path, matrices() | other))
    renames = {name.removeprefix("model."): name for name in SHAPES}
    with pytest.raises(CheckpointError, match="q_proj.weight' is adapted twice"):
        adapted_weights(adapter, BaseTensors(SHAPES, renames))


def test_a_head_that_follows_its_embedding_is_adapted_alike(tmp_path):
    """ensure_weight_tying: PEFT saves both, and keeps one of them."""
    a, b = np.ones((RANK, 7), np.float32), np.ones((INPUTS, RANK), np.float32)
    low = {f"{EMBEDDING}.lora_embedding_A": a, f"{EMBEDDING}.lora_embedding_B": b}
    targets = {"target_modules": ["q_proj", "v_proj", "embed_tokens"], "ensure_weight_tying": True}

    def opened(name, tensors, **settings):
        return open_adapter(write_adapter(tmp_path / name, vocabulary_tensors(**tensors), **settings)).modules

    head = {"lm_head.lora_A.weight": b.T, "lm_head.lora_B.weight": a.T}
    assert {EMBEDDING, "lm_head"} <= opened("low", low | head, **targets).keys()
    with pytest.raises(CheckpointError, match="'lm_head' and 'model.embed_tokens' are adapted differently"):
        opened("other", low | head | {"lm_head.lora_A.weight": 2 * b.T}, **targets)
    with pytest.raises(CheckpointError, match="must both be adapted; here are 'model.embed_tokens'$"):
        opened("alone", low, **targets)
    with pytest.raises(CheckpointError, match="module 'lm_head' is none of target_modules"):
        opened("untied", low | head, **{**targets, "ensure_weight_tying": False})

    saved = {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}
    one, other = (np.full((7, INPUTS), value, np.float32) for value in (2, 3))
    whole = {f"{EMBEDDING}.weight": one, "lm_head.weight": one}
    assert {EMBEDDING, "lm_head"} <= opened("whole", whole, **saved).keys()
    with pytest.raises(CheckpointError, match="are adapted differently, and must be alike"):
        opened("mixed", whole | {"lm_head.weight": other}, **saved)
