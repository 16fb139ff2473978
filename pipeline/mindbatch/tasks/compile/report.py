"""Reports the compilation of the graphs of ranks, and compares their memory with that of an NPU."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mindbatch.config.model_schema import ParallelConfig
from mindbatch.engine.settings import EngineSettings
from mindbatch.io.amounts import ranges, size, table
from mindbatch.io.screen_text import printable
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.tasks.layout.parts import sizes_json, sizes_line

FUSED = frozenset(
    {
        "AddLayerNorm",
        "AddRmsNorm",
        "ApplyRotaryPosEmb",
        "FlashAttentionScore",
        "FusedAddTopKDiv",
        "GroupTopk",
        "GroupedMatmul",
        "GroupedMatmulV4",
        "LayerNormExt",
        "MatmulSplitOut2",
        "MatmulSplitOut3",
        "MatmulSplitSiluOut2",
        "Mla",
        "MoeGatingGroupTopK",
        "MoeInitRoutingV2",
        "MoeTokenUnpermute",
        "PagedAttention",
        "ReshapeAndCache",
        "RmsNorm",
        "Swiglu",
        "SwiGLU",
    }
)
"""Operators that combine several; their use shows that a graph was fused."""

COLLECTIVES = frozenset({"AllGather", "AllReduce", "AllToAll", "Broadcast", "ReduceScatter"})
"""Operators in which ranks exchange data."""
_TITLES = ["graph", "tokens", "seconds", "compiled: fused operators and collectives, or refused"]


Report = dict[str, Any]
"""The report on all ranks as JSON, which `report_json` makes and the page shows."""


_GRAPH = {"kind": "", "tokens": 0, "seconds": 0.0, "kernels": {}, "operator": "", "layer": "", "rule": None}
"""Values in the JSON of a graph on which the simulation reported nothing. rule: the reason of a refusal."""


def device_memory(
    available: int, weights: int, adapters: int, bytes_per_token: int, settings: EngineSettings
) -> dict[str, Any]:
    """Sums the bytes on one NPU, as JSON. available: bytes for weights, adapters and cache."""
    block, left = settings.block_size, available - weights - adapters
    cache = (settings.num_blocks + 1) * block * bytes_per_token  # a block more than it holds is for padding
    return {
        "available_bytes": available,
        "weight_bytes": weights,
        **({"adapter_bytes": adapters} if adapters else {}),
        "cache_bytes": cache,
        "cache_tokens": settings.num_blocks * block,
        "bytes_per_token": bytes_per_token,
        "most_cache_tokens": max(0, left // (block * bytes_per_token) - 1) * block,
        "fits": cache <= left,
    }


@dataclass
class RankReport:
    """The graphs of one rank. error: why no more graphs were tried; None if all were.

    described_rank: the number, the shard and the compiled layers of the rank, as JSON.
    weights: bytes of the weights. memory: the result of `device_memory`.
    counts: how many layers each compiled layer stands for, if the rank's process reports their bytes.
    """

    described_rank: Mapping[str, Any]
    weights: int
    memory: Callable[[int], dict[str, Any]]
    counts: tuple[int, ...] = ()
    graphs: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    _begun: Mapping[str, Any] | None = None

    def take(self, answer: Mapping[str, Any]) -> None:
        """Adds an answer of `compile_ranks`.

        A graph is reported before it is compiled, and after; one that was compiled before is left out.
        """
        if "error" in answer:
            self.error = answer["error"]
            if self._begun is not None:
                self._add({**self._begun, "rule": f"the process ended over it ({self.error})"})
        elif "layer_bytes" in answer:
            of_layers = zip(self.counts, answer["layer_bytes"], strict=True)
            self.weights = answer["other_bytes"] + sum(count * nbytes for count, nbytes in of_layers)
        elif "seconds" in answer:
            self._begun = None
            if answer.get("kernels") or "rule" in answer:
                self._add(answer)
        else:
            self._begun = answer

    def _add(self, answer: Mapping[str, Any]) -> None:
        graph = {name: answer.get(name, default) for name, default in _GRAPH.items()}
        fused = _counts(graph, FUSED)
        self.graphs.append(graph | {"fused": fused, "is_compiled": graph["rule"] is None})

    def as_json(self) -> dict[str, Any]:
        return {
            **self.described_rank,
            "memory": self.memory(self.weights),
            "graphs": self.graphs,
            "error": self.error,
        }


def _counts(graph: Mapping[str, Any], operators: frozenset[str]) -> dict[str, int]:
    return {name: count for name, count in graph["kernels"].items() if name in operators}


def report_json(
    model: ModelSpec, dtype: str, parallel: ParallelConfig, ranks: Iterable[RankReport]
) -> Report:
    """Makes the report on all ranks that were compiled."""
    rank_reports = [rank.as_json() for rank in ranks]
    return {
        "kind": "compilation",
        "model_type": model.model_type,
        "dtype": dtype,
        **sizes_json(parallel),
        "num_layers": model.architecture.num_layers,
        "compiled_layers": sorted({layer for rank in rank_reports for layer in rank["compiled_layers"]}),
        "ranks": rank_reports,
        "is_good": all(map(_is_good, rank_reports)),
    }


def _is_good(rank: Mapping[str, Any]) -> bool:
    """True if every graph was compiled, and the rank fits its NPU."""
    is_compiled = all(graph["is_compiled"] for graph in rank["graphs"])
    return rank["error"] is None and rank["memory"]["fits"] and is_compiled


def compilation_page(report: Report) -> str:
    blocks = [[*_head(report)], *([*_rank(rank, report)] for rank in report["ranks"])]
    return "\n\n".join("\n".join(block) for block in blocks)


def _head(report: Report) -> Iterator[str]:
    yield f"{report['model_type']} compiled for Ascend, simulated: {report['dtype']}"
    yield sizes_line(report)
    if report["pipeline_stage"] == 1:
        yield _layers(report["compiled_layers"], report["num_layers"])
    yield "shapes, types and the choice of kernels are proved; numbers, speed and kernels' insides are not"


def _layers(compiled: Sequence[int], num_layers: int) -> str:
    if len(compiled) == 1 < num_layers:
        return f"layer {compiled[0]}, one of {num_layers}, was compiled and stands for all of them"
    if len(compiled) < num_layers:
        return f"layers {ranges(compiled)} of {num_layers} were compiled and stand for all of them"
    return f"all {num_layers} layers were compiled"


def _rank(rank: Mapping[str, Any], report: Report) -> Iterator[str]:
    layers, stages = rank["stage_layers"], report["pipeline_stage"]
    if stages == 1:
        yield f"rank {rank['rank']}"
    else:
        stage = f"stage {rank['stage']} of {stages}, layers {layers[0]} to {layers[-1]}"
        tensor_rank = f"tensor rank {rank['tensor_rank']} of {report['model_parallel']}"
        yield f"rank {rank['rank']}: {stage}, {tensor_rank}"
        yield _layers(rank["compiled_layers"], len(layers))
    graphs = rank["graphs"]
    if graphs:
        rows = [
            [graph["kind"], f"{graph['tokens']:,}", f"{graph['seconds']:.1f}", _outcome(graph)]
            for graph in graphs
        ]
        yield from table([_TITLES, *rows], right=(1, 2))
    refused = sum(not graph["is_compiled"] for graph in graphs)
    yield f"{len(graphs) - refused} graphs compiled, {refused} refused"
    if rank["error"] is not None:
        yield f"no more graphs were tried: {printable(rank['error'])}"
    yield _memory(rank["memory"])


def _outcome(graph: Mapping[str, Any]) -> str:
    if graph["is_compiled"]:
        shown = graph["fused"] | _counts(graph, COLLECTIVES)
        return ", ".join(f"{count} {name}" for name, count in shown.items()) or "none fused"
    where = f" in {graph['layer']}" if graph["layer"] else ""
    return printable(f"refused: {graph['operator'] or 'an operator'}{where}: {graph['rule']}")


def _memory(memory: Mapping[str, Any]) -> str:
    adapters = f", adapters {size(memory['adapter_bytes'])}" if "adapter_bytes" in memory else ""
    taken = (
        f"memory: weights {size(memory['weight_bytes'])}{adapters}, cache {size(memory['cache_bytes'])} "
        f"({memory['cache_tokens']:,} tokens of {size(memory['bytes_per_token'])})"
    )
    verdict = "fits" if memory["fits"] else "does NOT fit"
    return (
        f"{taken}: {verdict} {size(memory['available_bytes'])}, which would hold "
        f"{memory['most_cache_tokens']:,} cached tokens beside the weights"
    )
