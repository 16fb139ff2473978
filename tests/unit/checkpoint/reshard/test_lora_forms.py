"""`mindbatch reshard lora.merge=`: adapters of every form, against sums by hand; the same bits at any cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mindbatch.io.errors import CheckpointError
from reshard_adapters import reshard
from reshard_models import LLAMA, MODELS, contents, source_shapes_of, write_model, write_tensors

ONE_LAYER = {**LLAMA, "num_hidden_layers": 1, "attention_bias": True}
GPT2 = {**MODELS["gpt2"], "n_layer": 1, "tie_word_embeddings": False}
LAYER = "model.layers.0.self_attn"
EMBEDDING, HEAD = "model.embed_tokens", "lm_head"

Arrays = dict[str, NDArray[np.float32]]


class Adapter:
    """A PEFT folder that is put together by hand, and what a merge of it must give in float64."""

    def __init__(self, config: Mapping[str, Any], **settings: Any) -> None:
        self.shapes = source_shapes_of(config)
        self.settings = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": [], **settings}
        self.tensors: Arrays = {}
        self.edits: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {}
        self.chance = np.random.default_rng(7)

    def array(self, *shape: int) -> NDArray[np.float32]:
        return self.chance.normal(size=shape).astype(np.float32)

    def low_rank(
        self,
        module: str,
        rank: int = 3,
        scaling: float = 2.0,
        *,
        turned: bool = False,
        embedding: bool = False,
    ) -> None:
        """A and B of a module, with a magnitude and a bias where the settings say so."""
        shape = self.shapes[f"{module}.weight"]
        outputs, inputs = shape[::-1] if turned or embedding else shape
        a, b = self.array(rank, inputs), self.array(outputs, rank)
        name = f"base_model.model.{module}.lora_"
        ends = ("embedding_A", "embedding_B") if embedding else ("A.weight", "B.weight")
        self.tensors |= {name + ends[0]: a, name + ends[1]: b}
        delta = scaling * b.astype(np.float64) @ a
        magnitude = None
        if self.settings.get("use_dora"):
            magnitude = np.abs(self.array(outputs))
            self.tensors[name + "magnitude_vector"] = magnitude
        self.edits[f"{module}.weight"] = lambda weight: _merged(weight, delta, magnitude, turned or embedding)
        if self.settings.get("lora_bias"):
            bias = self.array(outputs)
            self.tensors[name + "B.bias"] = bias
            self.edits[f"{module}.bias"] = lambda own: own + scaling * bias.astype(np.float64)

    def saved(self, module: str) -> None:
        weight = self.array(*self.shapes[f"{module}.weight"])
        self.tensors[f"base_model.model.{module}.weight"] = weight
        self.edits[f"{module}.weight"] = lambda own: weight.astype(np.float64)

    def write(self, folder: Path) -> Path:
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps(self.settings))
        write_tensors(folder / "adapter_model.safetensors", self.tensors, "F32")
        return folder


def _merged(
    weight: NDArray[Any], delta: NDArray[Any], magnitude: NDArray[Any] | None, turned: bool
) -> NDArray[Any]:
    whole = (weight.T if turned else weight).astype(np.float64) + delta
    if magnitude is not None:
        whole *= (magnitude / np.linalg.norm(whole, axis=1))[:, None]
    return whole.T if turned else whole


def plain() -> Adapter:
    targets = ["q_proj", "o_proj", "down_proj"]
    ranks, alphas = {"o_proj": 5}, {r"layers\.0\.mlp\..*": 9}
    adapter = Adapter(ONE_LAYER, target_modules=targets, rank_pattern=ranks, alpha_pattern=alphas)
    adapter.low_rank(f"{LAYER}.q_proj")
    adapter.low_rank(f"{LAYER}.o_proj", 5, 6 / 5)
    adapter.low_rank("model.layers.0.mlp.down_proj", 3, 3.0)
    return adapter


def dora() -> Adapter:
    targets = ["q_proj", "o_proj", "down_proj", "embed_tokens"]
    adapter = Adapter(ONE_LAYER, target_modules=targets, use_dora=True, use_rslora=True)
    for module in (f"{LAYER}.q_proj", f"{LAYER}.o_proj", "model.layers.0.mlp.down_proj"):
        adapter.low_rank(module, scaling=6 / np.sqrt(3))
    adapter.low_rank(EMBEDDING, scaling=6 / np.sqrt(3), embedding=True)
    return adapter


def biases() -> Adapter:
    adapter = Adapter(ONE_LAYER, target_modules=["q_proj", "v_proj"], lora_bias=True)
    for name in ("q_proj", "v_proj"):
        adapter.low_rank(f"{LAYER}.{name}")
    return adapter


def saved() -> Adapter:
    adapter = Adapter(ONE_LAYER, target_modules=["k_proj"], modules_to_save=["lm_head", "embed_tokens"])
    adapter.low_rank(f"{LAYER}.k_proj")
    adapter.saved(EMBEDDING)
    adapter.saved(HEAD)
    return adapter


def saved_below() -> Adapter:
    """PEFT saves an adapted embedding's own weight as well, and loads it over the model's."""
    adapter = Adapter(ONE_LAYER, target_modules=["embed_tokens"])
    adapter.low_rank(EMBEDDING, embedding=True)
    base = adapter.array(*adapter.shapes[f"{EMBEDDING}.weight"])
    adapter.tensors[f"base_model.model.{EMBEDDING}.base_layer.weight"] = base
    added = adapter.edits[f"{EMBEDDING}.weight"]
    adapter.edits[f"{EMBEDDING}.weight"] = lambda weight: added(base)
    return adapter


def fused() -> Adapter:
    targets = ["c_attn", "c_proj", "wte", "lm_head"]
    adapter = Adapter(GPT2, target_modules=targets, use_dora=True, fan_in_fan_out=False)
    for module in ("attn.c_attn", "attn.c_proj", "mlp.c_proj"):
        adapter.low_rank(f"transformer.h.0.{module}", turned=True)
    adapter.low_rank("transformer.wte", embedding=True)
    adapter.low_rank(HEAD)
    return adapter


FORMS = {each.__name__: each for each in (plain, dora, biases, saved, saved_below, fused)}


def arrays_of(folder: Path) -> Arrays:
    [held] = contents(folder)
    return {name: np.frombuffer(data, np.float32).reshape(shape) for name, (_, shape, data) in held.items()}


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("form", FORMS)
def test_the_merge_is_the_sum(tmp_path: Path, form: str) -> None:
    """And has the same bits from a source that is cut, into a target that is cut."""
    adapter = FORMS[form]()
    start = write_model(tmp_path / "start", GPT2 if form == "fused" else ONE_LAYER)
    folder = adapter.write(tmp_path / "adapter")
    reshard(start, tmp_path / "made", folder, verify=True)
    before, made = arrays_of(start), arrays_of(tmp_path / "made")
    for name, weight in before.items():
        expected = adapter.edits.get(name, lambda own: own)(weight)
        np.testing.assert_allclose(made[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)
        assert (made[name].tobytes() != weight.tobytes()) == (name in adapter.edits)
    reshard(start, tmp_path / "cut", target_model_parallel=4)
    reshard(tmp_path / "cut", tmp_path / "merged", folder, target_model_parallel=2)
    reshard(tmp_path / "merged", tmp_path / "whole")
    assert contents(tmp_path / "whole") == contents(tmp_path / "made")


@pytest.mark.parametrize("of_head", [False, True])
def test_one_of_two_tied_weights_is_not_merged(tmp_path: Path, of_head: bool) -> None:
    """It would change both, which is not what the adapter does beside the model."""
    tied = {**ONE_LAYER, "tie_word_embeddings": True}
    start, module = write_model(tmp_path / "start", tied), HEAD if of_head else EMBEDDING
    adapter = Adapter(ONE_LAYER, target_modules=[module])
    adapter.low_rank(module, embedding=not of_head)
    with pytest.raises(CheckpointError, match=f"module '{module}': the head and the token embedding are one"):
        reshard(start, tmp_path / "made", adapter.write(tmp_path / "adapter"))


def test_both_of_two_tied_weights_are_replaced(tmp_path: Path) -> None:
    tied = {**ONE_LAYER, "tie_word_embeddings": True}
    start = write_model(tmp_path / "start", tied)
    adapter = Adapter(ONE_LAYER, target_modules=["q_proj"])
    adapter.low_rank(f"{LAYER}.q_proj")
    adapter.saved(EMBEDDING)
    adapter.tensors["base_model.model.lm_head.weight"] = adapter.tensors[
        f"base_model.model.{EMBEDDING}.weight"
    ]
    reshard(start, tmp_path / "made", adapter.write(tmp_path / "adapter"))
    made = arrays_of(tmp_path / "made")
    expected = adapter.tensors["base_model.model.lm_head.weight"]
    np.testing.assert_array_equal(made[f"{EMBEDDING}.weight"], expected)
    assert "lm_head.weight" not in made


def test_a_bias_needs_a_bias(tmp_path: Path) -> None:
    start = write_model(tmp_path / "start", {**ONE_LAYER, "attention_bias": False})
    folder = biases().write(tmp_path / "adapter")
    with pytest.raises(CheckpointError, match="the model has no 'model.layers.0.self_attn.q_proj.bias' to"):
        reshard(start, tmp_path / "made", folder)
    assert not (tmp_path / "made").exists()


def test_a_resized_vocabulary_is_refused(tmp_path: Path) -> None:
    start = write_model(tmp_path / "start", ONE_LAYER)
    adapter = saved()
    name = "base_model.model.lm_head.weight"
    adapter.tensors[name] = np.concatenate([adapter.tensors[name]] * 2)
    message = r"has shape \[134, 32\], 'lm_head.weight' has \[67, 32\] \(was the"
    with pytest.raises(CheckpointError, match=message):
        reshard(start, tmp_path / "made", adapter.write(tmp_path / "adapter"))


def test_what_is_no_fault_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = write_model(tmp_path / "start", ONE_LAYER)
    adapter = plain()
    adapter.settings |= {"init_lora_weights": "pissa_niter_4", "base_model_name_or_path": "org/other"}
    reshard(start, tmp_path / "made", adapter.write(tmp_path / "adapter"))
    told = capsys.readouterr().err
    assert "init_lora_weights='pissa_niter_4': this training began by changing the base" in told
    assert "base_model_name_or_path='org/other': trained on another model than" in told
