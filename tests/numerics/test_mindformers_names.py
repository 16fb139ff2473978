"""Names and forms against MindFormers 1.9: its networks' parameters, and its own conversion.

GPT2LMHeadModel is not in 1.9 any more: its names are those of older releases, checked by nothing here.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest

from mindbatch.checkpoint.names.dialect import Heads, Options
from mindbatch.checkpoint.names.registry import dialect
from mindbatch.checkpoint.names.renamed_files import to_huggingface, to_mindformers
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run as run_reshard
from reshard_models import write_model

PROGRAM = Path(__file__).with_name("mindformers_names.py")
HEADS = Heads(4, 2, 8)
LAYER, STORED = "model.layers.0", "model.layers.0"
SHAPES = {
    "model.embed_tokens.weight": (64, 32),
    f"{LAYER}.self_attn.q_proj.weight": (32, 32),
    f"{LAYER}.self_attn.k_proj.weight": (16, 32),
    f"{LAYER}.self_attn.v_proj.weight": (16, 32),
    f"{LAYER}.self_attn.o_proj.weight": (32, 32),
    f"{LAYER}.mlp.gate_proj.weight": (48, 32),
    f"{LAYER}.mlp.up_proj.weight": (48, 32),
    f"{LAYER}.mlp.down_proj.weight": (32, 48),
    f"{LAYER}.input_layernorm.weight": (32,),
    f"{LAYER}.post_attention_layernorm.weight": (32,),
    "model.norm.weight": (32,),
    "lm_head.weight": (64, 32),
}
BIASES = {
    f"{LAYER}.self_attn.{which}_proj.bias": (size,) for which, size in (("q", 32), ("k", 16), ("v", 16))
}
GLM = "transformer.encoder.layers.0"
GLM_SHAPES = {
    "transformer.embedding.word_embeddings.weight": (64, 32),
    f"{GLM}.input_layernorm.weight": (32,),
    f"{GLM}.self_attention.query_key_value.weight": (64, 32),
    f"{GLM}.self_attention.query_key_value.bias": (64,),
    f"{GLM}.self_attention.dense.weight": (32, 32),
    f"{GLM}.post_attention_layernorm.weight": (32,),
    f"{GLM}.mlp.dense_h_to_4h.weight": (96, 32),
    f"{GLM}.mlp.dense_4h_to_h.weight": (32, 48),
    "transformer.encoder.final_layernorm.weight": (32,),
    "transformer.output_layer.weight": (64, 32),
}


MCORE_SHAPES = {
    "qwen3": {
        **SHAPES,
        f"{LAYER}.self_attn.q_norm.weight": (8,),
        f"{LAYER}.self_attn.k_norm.weight": (8,),
    }
}
_MLP = {name for name in SHAPES if ".mlp." in name}
MCORE_SHAPES["qwen3_moe"] = {
    **{name: shape for name, shape in MCORE_SHAPES["qwen3"].items() if name not in _MLP},
    f"{LAYER}.mlp.gate.weight": (3, 32),
    **{
        f"{LAYER}.mlp.experts.{expert}.{which}_proj.weight": (32, 6) if which == "down" else (6, 32)
        for which in ("gate", "up", "down")
        for expert in range(3)
    },
}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mindformers")
    (folder / "names.json").write_text(json.dumps([[*SHAPES, *BIASES], MCORE_SHAPES]))
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder / "names.json")],
        env={**os.environ, "LOG_MF_PATH": str(folder / "log"), "GLOG_v": "3"},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def slices(region):
    return tuple(slice(*bounds) for bounds in region)


def listed(names):
    return {name: list(shape) for name, shape in names.stored_shapes(0).items()}


def llama(options, shapes=SHAPES):
    return to_mindformers(dialect("llama", options), shapes, HEADS)


@pytest.mark.slow
def test_llama_with_biases_has_the_parameters_of_the_network(theirs):
    """Without them: see test_a_reshard_writes_the_parameters_of_the_network."""
    assert listed(llama(Options(), SHAPES | BIASES)) == theirs["llama bias"]


@pytest.mark.slow
@pytest.mark.parametrize("model_type", MCORE_SHAPES)
def test_mcore_tensors_are_those_of_its_converters(theirs, model_type):
    shapes = MCORE_SHAPES[model_type]
    heads = replace(HEADS, experts=3)
    rules = dialect(model_type, Options(is_mcore=True))
    files = to_mindformers(rules, shapes, heads)
    arrays = {
        name: np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape) + 1e4 * place
        for place, (name, shape) in enumerate(shapes.items())
    }
    expected = theirs[f"mcore {model_type}"]
    assert files.ranks[0].keys() == expected.keys()
    for name, stored in files.ranks[0].items():
        made = np.zeros(stored.shard.view, np.float32)
        for tensor, segment in stored.segments:
            part = arrays[tensor][slices(segment.whole)]
            made[slices(segment.local)] = part.T if segment.transposed else part
        np.testing.assert_array_equal(made.reshape(stored.shard.shape), np.array(expected[name]))
    back = to_huggingface(rules, {name: stored.shard.shape for name, stored in files.ranks[0].items()}, heads)
    assert back.shapes == shapes


@pytest.mark.slow
@pytest.mark.parametrize("qkv", [False, True])
def test_chatglm_has_the_parameters_of_the_network(theirs, qkv):
    names = to_mindformers(dialect("chatglm", Options(qkv_concat=qkv)), GLM_SHAPES, HEADS)
    assert listed(names) == theirs[f"chatglm {qkv}"]


@pytest.mark.slow
def test_names_are_those_of_its_conversion(theirs):
    found = {tensor: each.name for tensor, each in llama(Options(), SHAPES | BIASES).locations()}
    assert found == theirs["converted"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "stored", "parts"),
    [
        ("qkv", f"{STORED}.attention.w_qkv.weight", [f"{LAYER}.self_attn.{w}_proj.weight" for w in "qkv"]),
        ("qkv bias", f"{STORED}.attention.w_qkv.bias", [f"{LAYER}.self_attn.{w}_proj.bias" for w in "qkv"]),
        (
            "gates",
            f"{STORED}.feed_forward.w_gate_hidden.weight",
            [f"{LAYER}.mlp.{w}_proj.weight" for w in ("gate", "up")],
        ),
    ],
)
def test_fused_tensors_are_those_of_its_conversion(theirs, case, stored, parts):
    names = llama(Options(qkv_concat=True), SHAPES | BIASES)
    rows = sum(SHAPES.get(part, BIASES.get(part))[0] for part in parts)
    whole = names.ranks[0][stored]
    inputs = whole.shard.shape[1:]
    joined = np.arange(1, rows * (inputs or (1,))[0] + 1, dtype=np.float32).reshape(rows, *inputs)
    arrays, start = {}, 0
    for part in parts:
        size = names.shapes[part][0]
        arrays[part], start = joined[start : start + size], start + size
    made = np.zeros(whole.shard.view, np.float32)
    for tensor, segment in whole.segments:
        made[slices(segment.local)] = arrays[tensor][slices(segment.whole)]
    np.testing.assert_array_equal(made.reshape(whole.shard.shape), np.array(theirs[case]))


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["plain", "fused"])
def test_a_reshard_writes_the_parameters_of_the_network(theirs, tmp_path, setting):
    """All of them, and MindSpore reads them."""
    config = {
        "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 16, "tie_word_embeddings": False,
    }  # fmt: skip
    task = ReshardConfig(source=str(write_model(tmp_path / "source", config)))
    task.target.dir, task.target.format, task.target.names = str(tmp_path / "made"), "ckpt", "mindformers"
    task.target.qkv_concat = setting == "fused"
    assert run_reshard(task) == 0
    found = ms.load_checkpoint(str(tmp_path / "made/model.ckpt"))
    assert {name: list(value.shape) for name, value in found.items()} == theirs[f"llama {setting}"]
