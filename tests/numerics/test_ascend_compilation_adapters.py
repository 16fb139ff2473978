"""Graphs with adapters beside the model compile for Ascend: each token gathers its own, in every step."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.ascend_simulation.compilation import CHUNK, COPY, DECODE, HEAD, PROMPT
from mindbatch.ascend_simulation.process import simulate
from mindbatch.model_spec.registry import describe, tensor_specs
from simulated_compilation import compile_job, compile_jobs

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("ascend_simulation")]
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 101,  # of two ranks the last one has padding
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
}
GPT2 = {"model_type": "gpt2", "vocab_size": 101, "n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 64}
FUSED = {DECODE: "PagedAttention", PROMPT: "FlashAttentionScore", CHUNK: "PagedAttention"}
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
LINEAR = 4
"""Adapted linear layers of a block; Llama's head is another."""
ALWAYS, SWEEP = [(LLAMA, 2)], [(LLAMA, 1), (GPT2, 2)]
"""Each with the number of ranks, of which the last is compiled."""


def write_adapter(folder: Path, config: dict[str, Any], rank: int) -> None:
    """A PEFT folder for every linear layer."""
    targets = ["c_attn", "c_proj", "c_fc"] if config["model_type"] == "gpt2" else [*PROJECTIONS]
    tensors = {}
    for name, shape in source_shapes(tensor_specs(describe(config))).items():
        module = name.removesuffix(".weight")
        if len(shape) == 2 and module.rpartition(".")[2] in targets:
            outputs, inputs = shape[::-1] if config["model_type"] == "gpt2" else shape
            tensors[f"base_model.model.{module}.lora_A.weight"] = np.ones((rank, inputs), np.float32)
            tensors[f"base_model.model.{module}.lora_B.weight"] = np.ones((outputs, rank), np.float32)
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    save_file(tensors, folder / "adapter_model.safetensors")


@pytest.fixture(
    scope="module",
    params=[ALWAYS, pytest.param(SWEEP, marks=pytest.mark.on_demand)],
    ids=["always", "sweep"],
)
def compiled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    """By model type and number of ranks: the graphs, compiled in one process."""
    home, jobs = tmp_path_factory.mktemp("adapters"), {}
    for config, size in request.param:
        folders = {f"rank {rank}": str(home / f"{config['model_type']}{rank}") for rank in (2, 5)}
        for name, folder in folders.items():
            write_adapter(Path(folder), config, int(name.split()[1]))
        jobs[f"{config['model_type']} {size}"] = compile_job(
            "native",
            config,
            size,
            [size - 1],
            max_batched_tokens=2,
            lora={"adapters": folders, "max_loaded": 1},
        )
    found: dict[str, list[dict[str, Any]]] = {job: [] for job in jobs}
    for report in simulate(compile_jobs, json.dumps(jobs), seconds=3600.0):
        if "seconds" in report or "error" in report:
            found[report["job"]].append(report)
    return found


def test_every_graph_has_the_gathered_products(compiled: dict[str, list[dict[str, Any]]]) -> None:
    for job, graphs in compiled.items():
        has_head, is_cut = job.startswith("llama"), job.endswith("2")
        assert [graph.get("kind") for graph in graphs] == [DECODE, PROMPT, CHUNK, HEAD, COPY], graphs[-1]
        for graph in graphs:
            assert "rule" not in graph, (job, graph)
            blocks = LINEAR if graph["kind"] in FUSED else 0
            heads = has_head and graph["kind"] in (DECODE, HEAD)
            assert graph["kernels"].get("BatchMatMul", 0) == 2 * (blocks + heads), (job, graph)
            if graph["kind"] in FUSED:
                assert FUSED[graph["kind"]] in graph["kernels"]
                assert ("AllReduce" in graph["kernels"]) == is_cut
