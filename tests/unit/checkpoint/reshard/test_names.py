"""Reshards between Hugging Face names and MindFormers': there and back, the same bytes."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from placed_arrays import scattered
from safetensors_writer import write_index

from each_once import each_once
from mindbatch.checkpoint.names.dialect import Options
from mindbatch.checkpoint.names.registry import dialect, heads_of
from mindbatch.checkpoint.names.renamed_files import to_mindformers
from mindbatch.checkpoint.placement.plan import plan_copies
from mindbatch.checkpoint.reshard import write
from mindbatch.checkpoint.reshard.job import Reading, chunks_of
from mindbatch.checkpoint.strategy.strategy import Strategy, TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import strategy_bytes
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.model_spec.registry import describe
from reshard_adapters import reshard
from reshard_models import (
    LLAMA,
    MODELS,
    contents,
    flip_a_bit,
    stored,
    tensors_of,
    write_model,
    write_tensors,
)

FUSABLE = [model for model in MODELS if model not in ("gpt2", "pangu_alpha", "chatglm", "chatglm_6b")]
CASES = [(model, {}) for model in MODELS] + [
    (model, options)
    for model in FUSABLE
    for options in ({"qkv_concat": True}, {"qkv_concat": True, "qkv_grouped": False})
]
CASES.append(("chatglm", {"qkv_concat": True}))


Cuts = Mapping[str, tuple[int, ...]]


def mindformers(**options: Any) -> dict[str, Any]:
    return {"target_names": "mindformers", **{f"target_{key}": value for key, value in options.items()}}


def expected_stored(model: str, **options: Any) -> dict[str, np.ndarray]:
    """The full tensors under MindFormers' names, made literally."""
    arrays = tensors_of(MODELS[model])
    arch = describe(MODELS[model], to_be_run=False)
    concat, grouped = options.get("qkv_concat", False), options.get("qkv_grouped", True)
    settings = Options(qkv_concat=concat, grouped=grouped, num_layers=arch.num_layers)
    rules = dialect(arch.model_type, settings)
    names = to_mindformers(rules, {name: array.shape for name, array in arrays.items()}, heads_of(arch))
    [made] = scattered(names, arrays)
    return made


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(("case", "dtype"), each_once(CASES, ["F32", "BF16"], fast=3))
def test_there_and_back(tmp_path: Path, case: tuple[str, dict[str, Any]], dtype: str) -> None:
    model, options = case
    start = write_model(tmp_path / "start", MODELS[model], dtype)
    ways = 2 if options.get("qkv_concat") else 4
    named = mindformers(**options)
    reshard(start, tmp_path / "1", target_format="ckpt", **named, verify=True)
    (whole,) = contents(tmp_path / "1")
    expected = expected_stored(model, **options)
    assert whole == {
        name: (dtype, array.shape, np.ascontiguousarray(stored(array, dtype)).tobytes())
        for name, array in expected.items()
    }
    reshard(tmp_path / "1", tmp_path / "2", target_model_parallel=2, **named, verify=True)
    direct = {**named, "target_model_parallel": ways, "target_pipeline_stage": 2}
    reshard(tmp_path / "2", tmp_path / "3", **direct, target_format="ckpt", verify=True)
    reshard(start, tmp_path / "direct", **direct)
    assert contents(tmp_path / "3") == contents(tmp_path / "direct")
    assert len(contents(tmp_path / "3")) == 2 * ways
    reshard(tmp_path / "3", tmp_path / "4", **(mindformers() if options else named), verify=True)
    reshard(tmp_path / "4", tmp_path / "whole", verify=True)
    assert contents(tmp_path / "whole") == contents(start)


def test_a_fused_tensor_is_made_of_one_dtype_or_converted(tmp_path: Path) -> None:
    start = write_model(tmp_path / "start", LLAMA, digests=False)
    arrays = {name: stored(array, "F32") for name, array in tensors_of(LLAMA).items()}
    odd = "model.layers.1.mlp.up_proj.weight"
    half = {odd: arrays.pop(odd).astype(np.float16)}
    (start / "model.safetensors").unlink()
    write_tensors(start / "1.safetensors", arrays, "F32")
    write_tensors(start / "2.safetensors", half, "F16")
    write_index(start, {**dict.fromkeys(arrays, "1.safetensors"), odd: "2.safetensors"})
    with pytest.raises(CheckpointError, match=r"1.feed_forward.w_gate_hidden.* several dtypes: .* is F16"):
        reshard(start, tmp_path / "cut", **mindformers(qkv_concat=True))
    reshard(start, tmp_path / "plain", **mindformers())
    reshard(start, tmp_path / "cut", **mindformers(qkv_concat=True), target_dtype="bfloat16", verify=True)
    reshard(tmp_path / "cut", tmp_path / "whole", verify=True)
    reshard(start, tmp_path / "at_once", target_dtype="bfloat16")
    assert contents(tmp_path / "whole") == contents(tmp_path / "at_once")


def test_a_bare_base_model(tmp_path: Path) -> None:
    """Its names are without the prefix; those of MindFormers are of the whole model."""
    start = write_model(tmp_path / "start", MODELS["tied"])
    bare = write_model(tmp_path / "bare", MODELS["tied"], digests=False)
    arrays = {name.removeprefix("model."): array for name, array in tensors_of(MODELS["tied"]).items()}
    write_tensors(bare / "model.safetensors", arrays, "F32")
    named = mindformers(qkv_concat=True, model_parallel=2)
    for source, target in ((start, "1"), (bare, "2")):
        reshard(source, tmp_path / target, **named, verify=True)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    reshard(tmp_path / "2", tmp_path / "whole")
    assert contents(tmp_path / "whole") == contents(start)


def test_one_full_file_with_its_names_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = write_model(tmp_path / "start", MODELS["qwen2"])
    arrays = expected_stored("qwen2", qkv_concat=True, qkv_grouped=False)
    extra = {"model.layers.0.attention.rotary_emb.inv_freq": np.zeros(4, np.float32)}
    write_tensors(tmp_path / "full.ckpt", {**arrays, **extra}, "F32")
    read: dict[str, Any] = {"source_config": str(start), "source_qkv_grouped": False}
    reshard(tmp_path / "full.ckpt", tmp_path / "whole", **read, verify=True)
    assert contents(tmp_path / "whole") == contents(start)
    notes = capsys.readouterr().err
    assert "full.ckpt: the tensors have MindFormers' names, queries, keys and values in one" in notes
    assert "left out, for the model does not use them: 'model.layers.0.attention.rotary_emb.inv" in notes
    with pytest.raises(CheckpointError, match="wq.weight' is missing"):
        reshard(tmp_path / "full.ckpt", tmp_path / "other", **read, source_qkv_concat=False)
    with pytest.raises(CheckpointError, match="model.norm_out.weight.* is not part of this model"):
        reshard(tmp_path / "full.ckpt", tmp_path / "other", source_config=str(start), source_names="hf")


def strategy_source(folder: Path, model: str, ways: int, cuts: Cuts, **options: Any) -> dict[str, Any]:
    """Rank folders of MindFormers' tensors that a strategy cuts, and the options to read them.

    cuts: the tensor maps over a device matrix [1, ways] by the ends of names; others are whole everywhere.
    """
    layouts = []
    ranks: list[dict[str, Any]] = [{} for _ in range(ways)]
    for name, array in expected_stored(model, **options).items():
        cut = next((cut for end, cut in cuts.items() if name.endswith(end)), (-1,) * array.ndim)
        layouts.append(TensorLayout(name, (1, ways), cut))
        for rank, tensors in enumerate(ranks):
            tensors[name] = np.ascontiguousarray(array[layouts[-1].slice_of(rank, array.shape)])
    for rank, tensors in enumerate(ranks):
        path = folder / f"rank_{rank}/checkpoint_{rank}.ckpt"
        path.parent.mkdir(parents=True)
        write_tensors(path, tensors, "F32")
    strategy = folder.with_name("strategy.ckpt")
    strategy.write_bytes(strategy_bytes(Strategy(tuple(layouts))))
    return {"source_strategy": str(strategy)}


FIRST, LAST = (0, -1), (-1, 0)
PLAIN_CUTS = {
    "wq.weight": FIRST, "wk.weight": FIRST, "wq.bias": (0,), "wo.weight": LAST, "w2.weight": LAST,
    "dense1.weight": FIRST, "dense2.weight": FIRST, "dense3.weight": FIRST, "dense1.bias": (0,),
    "dense2.bias": (0,), "dense3.bias": (0,), "projection.weight": LAST,
}  # fmt: skip
FUSED_CUTS = {"w_qkv.weight": FIRST, "w_qkv.bias": (0,), "w_gate_hidden.weight": FIRST, "w2.weight": LAST}


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("model", "ways", "cuts", "fused"),
    [
        ("gpt2", 4, PLAIN_CUTS, False),
        ("llama", 4, PLAIN_CUTS, False),
        ("llama", 2, FUSED_CUTS, True),
        ("qwen2", 8, FUSED_CUTS, True),  # through the middle of groups
        ("qwen2", 2, {"w_qkv.weight": LAST}, True),
        ("gpt2", 2, {"dense2.weight": LAST}, False),  # its other sections are whole on both ranks
    ],
)
def test_ranks_that_a_strategy_has_cut(
    tmp_path: Path, model: str, ways: int, cuts: Cuts, fused: bool
) -> None:
    start = write_model(tmp_path / "start", MODELS[model])
    read = strategy_source(tmp_path / "ranks", model, ways, cuts, qkv_concat=fused)
    read["source_config"] = str(start)
    reshard(tmp_path / "ranks", tmp_path / "whole", **read, verify=True)
    assert contents(tmp_path / "whole") == contents(start)
    for number, options in enumerate([{"qkv_concat": fused}, {}]):
        named = mindformers(**options, model_parallel=2, pipeline_stage=2)
        reshard(tmp_path / "ranks", tmp_path / f"again{number}", **read, **named, verify=True)
        reshard(start, tmp_path / f"direct{number}", **named)
        assert contents(tmp_path / f"again{number}") == contents(tmp_path / f"direct{number}")


@pytest.mark.parametrize(
    ("cuts", "grouped", "message"),
    [
        ({"w_gate_hidden.weight": LAST}, True, "w_gate_hidden.*2 full rows each belong together"),
        (FUSED_CUTS, False, "source_qkv_grouped=false: does not go with"),
    ],
)
def test_cuts_that_cannot_be_told(tmp_path: Path, cuts: Cuts, grouped: bool, message: str) -> None:
    start = write_model(tmp_path / "start", LLAMA)
    read = strategy_source(tmp_path / "ranks", "llama", 2, cuts, qkv_concat=True, qkv_grouped=grouped)
    if not grouped:
        read["source_qkv_grouped"] = False
    with pytest.raises((CheckpointError, ConfigError), match=message):
        reshard(tmp_path / "ranks", tmp_path / "whole", source_config=str(start), **read)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("llama", mindformers(qkv_concat=True, model_parallel=4),
         "target.qkv_concat=true: model_parallel=4 is above the 2 key/value heads .* allowed: up to 2"),
        ("gpt2", mindformers(qkv_concat=True), "target.qkv_concat=true: has no effect for model type gpt2"),
        ("gpt2", {"source_qkv_concat": True}, "source_qkv_concat: has no effect, .* Hugging Face names"),
        ("gpt2", {"source_qkv_concat": True, "source_names": "mindformers"}, "no effect for model type gpt2"),
        ("gpt2", {"source_names": "mindformers"}, "transformer.wte.weight' .*is not part of this model"),
        ("qwen3", mindformers(), "'qwen3' are not known; allowed: chatglm, chatglm_6b, gpt2, llama"),
        ("qwen3", mindformers(), "; target.names=mcore has those of its Mcore models"),
        ("qwen3", {"source_names": "mindformers"}, "model.embed_tokens.weight' .*is not part of this model"),
        ("tied_glm", mindformers(), "beside its embedding; here they are one; .* tie_word_embeddings=false"),
        (None, mindformers(), "target.names=mindformers: needs the model's config.json"),
        (None, {"source_names": "mindformers"}, "source_names: needs the model's config.json"),
    ],
)  # fmt: skip
def test_refusals(tmp_path: Path, model: str | None, options: dict[str, Any], message: str) -> None:
    qwen3 = {**LLAMA, "model_type": "qwen3", "head_dim": 4}
    tied_glm = {**MODELS["chatglm_6b"], "tie_word_embeddings": True}
    models = {**MODELS, "qwen3": qwen3, "tied_glm": tied_glm}
    start = write_model(tmp_path / "start", models[model or "llama"])
    if model is None:
        (start / "config.json").unlink()
    with pytest.raises((CheckpointError, ConfigError), match=message) as caught:
        reshard(start, tmp_path / "cut", **options)
    assert all(len(line) < 400 for line in caught.value.lines)
    assert not (tmp_path / "cut").exists()


def test_what_dry_run_and_the_marker_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = write_model(tmp_path / "start", LLAMA)
    named = mindformers(qkv_concat=True, model_parallel=2)
    reshard(start, tmp_path / "cut", **named, dry_run=True)
    printed = capsys.readouterr()
    padding = "rank 1: model.tok_embeddings.embedding_weight of shape [34, 32]: zeros at [[33, 34], [0, 32]]"
    assert padding in printed.out
    assert "planned and proved: 2 ranks, 21 tensors" in printed.out
    assert "lm_head.weight: padded on the last ranks; mindbatch reads these files" in printed.err
    reshard(start, tmp_path / "cut", **named)
    marker = json.loads((tmp_path / "cut/reshard.json").read_bytes())
    assert (
        marker["settings"].items()
        >= {"names": "mindformers", "qkv_concat": True, "qkv_grouped": True}.items()
    )
    with pytest.raises(ConfigError, match="qkv_concat was true, now false"):
        reshard(start, tmp_path / "cut", **mindformers(model_parallel=2))


def test_what_is_told_wrongly_is_found_before_a_byte_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = write_model(tmp_path / "start", LLAMA)
    monkeypatch.setattr("mindbatch.checkpoint.placement.proof.plan_copies", lambda *a: plan_copies(*a)[1:])
    with pytest.raises(CheckpointError, match="not made for target rank 0"):
        reshard(start, tmp_path / "cut", **mindformers(), dry_run=True)


# ---- matrices that are stored the other way round, and tensors that are made of several

FUSED, QUERIES = "transformer.h.1.attn.c_attn.weight", "backbone.blocks.1.attention.dense1.weight"
TURNED = mindformers(model_parallel=2)
"""GPT-2's fused matrix becomes three on each of two ranks."""


@pytest.mark.parametrize("chunk_bytes", [1, 200, 5000])
@pytest.mark.parametrize(
    ("model", "named"),
    [("gpt2", TURNED), ("pangu_alpha", TURNED), ("llama", {**TURNED, "target_qkv_concat": True})],
)
def test_bands_of_any_size_make_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, named: dict[str, Any], chunk_bytes: int
) -> None:
    start = write_model(tmp_path / "start", MODELS[model])
    reshard(start, tmp_path / "at_once", **named)
    monkeypatch.setattr(write, "chunks_of", partial(chunks_of, chunk_bytes=chunk_bytes))
    monkeypatch.setattr(write, "CHUNK_BYTES", chunk_bytes)
    reshard(start, tmp_path / "bands", **named, verify=True)
    assert contents(tmp_path / "bands") == contents(tmp_path / "at_once")
    reshard(tmp_path / "bands", tmp_path / "whole", verify=True)
    assert contents(tmp_path / "whole") == contents(start)


def test_a_matrix_that_is_turned_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[tuple[int, int]] = []
    rows_of_source = write.Sources.rows

    def counting(self: write.Sources, reading: Reading, start: int, stop: int, *rest: Any) -> memoryview:
        rows.extend([(start, stop)] if reading.name == FUSED else [])
        return rows_of_source(self, reading, start, stop, *rest)

    monkeypatch.setattr(write.Sources, "rows", counting)
    monkeypatch.setattr(write, "CHUNK_BYTES", 8 * 96 * 4)
    reshard(write_model(tmp_path / "start", MODELS["gpt2"]), tmp_path / "cut", **TURNED)
    assert rows == [(start, start + 8) for start in range(0, 32, 8)]


@pytest.mark.parametrize("place", [7, -5])
def test_damage_is_found_though_a_matrix_is_turned(tmp_path: Path, place: int) -> None:
    start = write_model(tmp_path / "start", MODELS["gpt2"])
    reshard(start, tmp_path / "cut", **TURNED)
    flip_a_bit(tmp_path / "cut/rank_1/model.safetensors", QUERIES, place)
    with pytest.raises(CheckpointError, match=f"tensor '{QUERIES}' is not what its source is"):
        reshard(start, tmp_path / "cut", **TURNED, verify=True)
    flip_a_bit(start / "model.safetensors", FUSED, place)
    with pytest.raises(CheckpointError, match=f"'{FUSED}' is damaged"):
        reshard(start, tmp_path / "other", **TURNED)
