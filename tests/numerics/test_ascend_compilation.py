"""Native model types compile for Ascend, as the first rank and the last; what cannot is refused by name.

scripts/compile_for_ascend.sh compiles all of them.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import chain
from typing import Any

import pytest

from ascend_check.models import CONFIGS
from mindbatch.ascend_simulation.compilation import CHUNK, COPY, DECODE, HEAD, PROMPT
from mindbatch.ascend_simulation.no_weights import NoWeights
from mindbatch.ascend_simulation.process import simulate
from mindbatch.backends import native
from mindbatch.kernels.reference import ReferenceKernels
from mindbatch.kernels.shapes import CacheGeometry
from mindbatch.kernels.step_programs import StepRecordings
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import defaults, describe
from simulated_compilation import compile_job, compile_jobs, first_and_last

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("ascend_simulation")]
LLAMA: dict[str, Any] = {
    "vocab_size": 101,  # no number of ranks divides it: the last one has padding
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,  # with 8 ranks four of them share a head
    "head_dim": 16,
    "max_position_embeddings": 64,
}
CHATGLM: dict[str, Any] = {
    "padded_vocab_size": 101,
    "hidden_size": 128,
    "ffn_hidden_size": 64,
    "num_attention_heads": 8,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "kv_channels": 16,
    "seq_length": 64,
}
GPT2 = {"vocab_size": 101, "n_embd": 128, "n_layer": 1, "n_head": 8, "n_positions": 64}
PLAIN = {"vocab_size": 101, "hidden_size": 128, "num_attention_heads": 8, "max_position_embeddings": 64}
EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
OF_EXPERTS = EXPERTS | {"num_experts": 4, "num_local_experts": 4}
GROUPS = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 0,
    "n_group": 2,
    "topk_group": 1,
}
LATENT = {
    **LLAMA,
    **EXPERTS,
    "num_key_value_heads": 8,
    "head_dim": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    **GROUPS,
}
T5 = {"vocab_size": 101, "d_model": 128, "d_kv": 16, "d_ff": 96, "num_heads": 8}
SIZES: dict[str, dict[str, Any]] = {
    "bloom": {"vocab_size": 101, "hidden_size": 128, "n_layer": 1, "n_head": 8, "seq_length": 64},
    "chatglm": CHATGLM,
    "chatglm_6b": {
        "vocab_size": 101,
        "hidden_size": 128,
        "inner_hidden_size": 96,
        "num_attention_heads": 8,
        "position_encoding_2d": True,
        "bos_token_id": 100,
        "gmask_token_id": 99,
        "mask_token_id": 98,
    },
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "ernie4_5_moe": LLAMA
    | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_layer_start_index": 0},
    "falcon": PLAIN,
    "glm4_moe_lite": LATENT | {"mlp_layer_types": ["sparse"]},
    "glm_moe_dsa": LATENT,
    "glm4_moe": LLAMA | EXPERTS | GROUPS,
    "gpt2": GPT2,
    "gpt_neox": PLAIN | {"intermediate_size": 96},
    "gptj": GPT2 | {"rotary_dim": 8},
    "llama4_text": LLAMA | {"num_local_experts": 4, "intermediate_size_mlp": 96, "no_rope_layers": [0]},
    "minimax_m2": LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 8},
    "mt5": T5,
    "opt": PLAIN | {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "pangu_alpha": {"vocab_size": 101, "hidden_size": 128, "num_heads": 8, "max_position_embeddings": 64},
    "qwen2_moe": LLAMA | EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 48},
    "t5": T5,
    "telechat": {
        "vocab_size": 101,
        "hidden_size": 128,
        "ffn_hidden_size": 96,
        "n_head": 8,
        "training_seqlen": 64,
        "base_seqlen": 64,
    },
}
"""Of types that have other keys than Llama's."""
ENCODERS = {"mt5", "t5"}
PLAIN_ATTENTION = {
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "gemma2",
    "gpt_oss",
    *ENCODERS,
}
TOKENS_ALONE = {*PLAIN_ATTENTION, "chatglm_6b"}
"""Each token is a sequence of its own in every step: there is one graph for all kinds."""
FUSED = {
    DECODE: {"PagedAttention", "ReshapeAndCache"},
    PROMPT: {"FlashAttentionScore", "ReshapeAndCache"},
    CHUNK: {"PagedAttention", "ReshapeAndCache"},
}


def job(model_type: str, size: int, ranks: list[int], stages: int = 1, layers: int = 1) -> dict[str, Any]:
    """So many layers for each stage."""
    experts = {key: size for key, size in OF_EXPERTS.items() if key in defaults(model_type)}
    config = {"model_type": model_type, **SIZES.get(model_type, LLAMA | experts)}
    depth = {
        "bloom": "n_layer",
        "chatglm": "num_layers",
        "chatglm_6b": "num_layers",
        "gpt2": "n_layer",
        "gptj": "n_layer",
        "mt5": "num_layers",
        "pangu_alpha": "num_layers",
        "t5": "num_layers",
        "telechat": "n_layer",
    }
    config[depth.get(model_type, "num_hidden_layers")] = layers * stages
    found = compile_job("native", config, size, ranks, max_batched_tokens=2, stages=stages)
    arch = describe(config)
    two, encoder = arch.two_positions, arch.encoder
    found["settings"]["two_positions"] = None if two is None else asdict(two)
    found["settings"]["decoder_start_id"] = None if encoder is None else encoder.start_id
    return found


def windowed_job() -> dict[str, Any]:
    """A layer with a window that hides something, one without."""
    found = job("gemma3_text", 1, [0], layers=2)
    found["config"] |= {"sliding_window": 8, "sliding_window_pattern": 2}
    return found


# The last of 8 ranks pads the vocabulary and shares its key/value head with others.
ALWAYS = {"qwen3 mp=8": job("qwen3", 8, [7])}
WINDOWED = "gemma3_text, a window"
"""Its graphs are the same whatever a step holds: PagedAttention with masks."""
OF_STAGES = "qwen3 mp=2 pp=3"
STAGE_LINKS = {0: 1, 3: 2, 5: 1}
"""A rank of each of three stages: with how many other stages it meets."""
LIKE_LLAMA = {"minimind", "mistral", "seed_oss", "smollm3", "telechat3"}
"""Their graphs are Llama's: `test_these_types_have_the_graphs_of_llama`."""
SWEEP = {
    f"{each} mp={size}": job(each, size, first_and_last(size))
    for each in sorted({*CONFIGS} - LIKE_LLAMA)
    for size in (1, 2, 8)
} | {WINDOWED: windowed_job(), OF_STAGES: job("qwen3", 2, [*STAGE_LINKS], stages=3)}


@pytest.fixture(
    scope="module",
    params=[ALWAYS, pytest.param(SWEEP, marks=pytest.mark.on_demand)],
    ids=["always", "sweep"],
)
def compiled(request: pytest.FixtureRequest) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """By job and rank: its graphs, each after it was compiled, or what ended it. float32 is the last job."""
    jobs = {**request.param, "float32": job("llama", 1, [0])}
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    names = [*jobs]
    shares = [{name: jobs[name] for name in names[first::2]} for first in range(2)]
    with ThreadPoolExecutor(2) as pool:  # a compilation takes one processor, and few tests run beside
        for report in chain.from_iterable(pool.map(reports_of, shares)):
            if "seconds" in report or "error" in report:
                found.setdefault((report["job"], report["rank"]), []).append(report)
    assert {*found} == {(name, rank) for name, each in jobs.items() for rank in each["ranks"]}
    return dict(sorted(found.items(), key=lambda entry: names.index(entry[0][0])))


def reports_of(jobs: dict[str, Any]) -> list[dict[str, Any]]:
    return [*simulate(compile_jobs, json.dumps(jobs), seconds=3600.0)]


def fused_of(name: str, kind: str) -> set[str]:
    """The operators that the graphs of a job must have."""
    if kind in FUSED and name.split()[0] in PLAIN_ATTENTION:
        return {"BatchMatMul", "ReshapeAndCache"}
    if kind in FUSED and name.split()[0] in TOKENS_ALONE:
        return FUSED[DECODE]
    return FUSED.get(kind, set())


Compiled = dict[tuple[str, int], list[dict[str, Any]]]


def kinds_of(name: str) -> list[str]:
    """The kinds of graphs of a job; an encoder's input is never taken in parts."""
    return [DECODE, PROMPT, *([] if name.split()[0] in ENCODERS else [CHUNK]), HEAD, COPY]


def test_these_types_have_the_graphs_of_llama() -> None:
    for each in LIKE_LLAMA:
        assert calls_of(each) == calls_of("llama")


def calls_of(model_type: str) -> list[tuple[str, list[tuple[int, ...]]]]:
    """What is recorded of a step, by the names of operations and the shapes of what they give."""
    arch = describe(job(model_type, 1, [0])["config"])
    model = native.load(ModelSpec.of(arch), NoWeights.of(arch), ReferenceKernels(), CacheGeometry(1, 16))
    assert isinstance(model.steps, StepRecordings)
    return [(call.operation, [each.shape for each in call.outputs]) for call in model.steps.step.calls]


def test_every_graph_is_compiled_with_the_fused_operators(compiled: Compiled) -> None:
    for which, graphs in compiled.items():
        if which[0] in ("float32", OF_STAGES, WINDOWED):
            continue
        assert [graph.get("kind") for graph in graphs] == kinds_of(which[0]), (which, graphs[-1])
        for graph in graphs:
            assert "rule" not in graph, (which, graph)
            if which[0].split()[0] in TOKENS_ALONE and graph["kind"] == CHUNK:
                assert graph["kernels"] == {}, "its graph is that of the kind before"
                continue
            assert fused_of(which[0], graph["kind"]) <= {*graph["kernels"]}, (which, graph)
            assert ("AllReduce" in graph["kernels"]) == ("mp=1" not in which[0] and graph["kind"] in FUSED)


def test_a_window_is_in_the_masks_of_every_graph(compiled: Compiled) -> None:
    if all(name != WINDOWED for name, _ in compiled):
        pytest.skip("in the sweep")
    graphs = compiled[WINDOWED, 0]
    assert [graph for graph in graphs if "rule" in graph] == []
    steps = [graph["kernels"] for graph in graphs if graph["kind"] in FUSED and graph["kernels"]]
    assert steps
    for kernels in steps:
        assert kernels["PagedAttention"] == 2
        assert "FlashAttentionScore" not in kernels
        assert kernels["LessEqual"] == 1


def test_stages_are_compiled_with_what_they_send(compiled: Compiled) -> None:
    if all(name != OF_STAGES for name, _ in compiled):
        pytest.skip("in the sweep")
    for rank, links in STAGE_LINKS.items():
        graphs = {graph["kind"]: graph for graph in compiled[OF_STAGES, rank]}
        assert [graph for graph in graphs.values() if "rule" in graph] == []
        assert {*graphs} == {DECODE, PROMPT, CHUNK, COPY} | ({HEAD} if rank == 5 else set())
        slices = 2 + (rank == 0)  # attention, MLP, and the embedding of the first stage
        for kind, fused in FUSED.items():
            assert fused <= {*graphs[kind]["kernels"]}
            assert graphs[kind]["kernels"]["AllReduce"] == slices + links


def test_float32_is_refused_by_the_operator_and_its_layer(compiled: Compiled) -> None:
    """So the check can fail."""
    graphs = {graph["kind"]: graph for graph in compiled["float32", 0]}
    for kind in FUSED:
        assert graphs[kind]["operator"] in {"ReshapeAndCache", "ApplyRotaryPosEmb"}
        assert "BFloat16" in graphs[kind]["rule"]
        assert "layers.0." in graphs[kind]["layer"]
