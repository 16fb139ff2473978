"""Outcome of compiling the graphs of ranks, its memory compared with that of an NPU, and the page of both."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mindbatch.engine.settings import EngineSettings
from mindbatch.io.amounts import ranges, size, table
from mindbatch.io.screen_text import printable
from mindbatch.parallel.topology import Stage, TensorSlice, Topology

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
"""Operators that do the work of several; what an engineer looks for in a graph."""

COLLECTIVES = frozenset({"AllGather", "AllReduce", "AllToAll", "Broadcast", "ReduceScatter"})
"""Operators in which ranks meet."""
_TITLES = ["graph", "tokens", "seconds", "compiled: fused operators and collectives, or refused"]


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes on one NPU. available: to weights, adapters and cache."""

    available: int
    weights: int
    bytes_per_token: int
    settings: EngineSettings
    adapters: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that the cache holds as it is configured."""
        return self.settings.num_blocks * self.settings.block_size

    @property
    def cache(self) -> int:
        """Bytes of the cache as it is configured; a block more than it holds is for padding."""
        return (self.settings.num_blocks + 1) * self.settings.block_size * self.bytes_per_token

    @property
    def fits(self) -> bool:
        return self.weights + self.adapters + self.cache <= self.available

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest cache beside weights and adapters."""
        block = self.settings.block_size
        blocks = (self.available - self.weights - self.adapters) // (block * self.bytes_per_token) - 1
        return max(0, blocks * block)

    def as_json(self) -> dict[str, Any]:
        return {
            "available_bytes": self.available,
            "weight_bytes": self.weights,
            **({"adapter_bytes": self.adapters} if self.adapters else {}),
            "cache_bytes": self.cache,
            "cache_tokens": self.tokens,
            "bytes_per_token": self.bytes_per_token,
            "most_cache_tokens": self.most_tokens,
            "fits": self.fits,
        }


@dataclass(frozen=True)
class CompiledGraph:
    """One graph. kernels: how often each is launched.

    rule: why it was refused; None where it was not. operator, layer: which, "" where MindSpore names none.
    """

    kind: str
    tokens: int
    seconds: float = 0.0
    kernels: Mapping[str, int] = field(default_factory=dict)
    operator: str = ""
    layer: str = ""
    rule: str | None = None

    def counts(self, operators: frozenset[str]) -> dict[str, int]:
        return {name: count for name, count in self.kernels.items() if name in operators}

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "fused": self.counts(FUSED), "is_compiled": self.rule is None}


@dataclass
class RankReport:
    """One rank. error: why no more graphs were tried; None where all were.

    stage, shard: what it holds of the model. layers: those of the stage that were compiled.
    counts: how many layers each compiled one stands for, where the rank's process tells their bytes.
    """

    rank: int
    stage: Stage
    shard: TensorSlice
    layers: tuple[int, ...]
    memory: DeviceMemory
    counts: tuple[int, ...] = ()
    graphs: list[CompiledGraph] = field(default_factory=list)
    error: str | None = None

    def weigh(self, others: int, layers: Sequence[int]) -> None:
        """Its weights: bytes of each compiled layer, and of all that is outside of layers."""
        of_layers = (count * nbytes for count, nbytes in zip(self.counts, layers, strict=True))
        self.memory = replace(self.memory, weights=others + sum(of_layers))

    def end(self, error: str) -> None:
        """Its process ended over the graph that was told last, or before the first."""
        self.error = error
        if self.graphs and not self.graphs[-1].seconds:
            self.graphs[-1] = replace(self.graphs[-1], rule=f"the process ended over it ({error})")

    @property
    def is_good(self) -> bool:
        return self.error is None and self.memory.fits and all(graph.rule is None for graph in self.graphs)

    def as_json(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "stage": self.stage.index,
            "tensor_rank": self.shard.rank,
            "stage_layers": [*self.stage.layers],
            "compiled_layers": [*self.layers],
            "memory": self.memory.as_json(),
            "graphs": [graph.as_json() for graph in self.graphs],
            "error": self.error,
        }


@dataclass(frozen=True)
class Report:
    """All ranks that were compiled for. num_layers: of the model."""

    model_type: str
    dtype: str
    topology: Topology
    num_layers: int
    ranks: tuple[RankReport, ...]

    @property
    def layers(self) -> list[int]:
        """Those that were compiled, on any rank."""
        return sorted({layer for rank in self.ranks for layer in rank.layers})

    @property
    def is_good(self) -> bool:
        """True if every graph was compiled, and every rank fits its NPU."""
        return all(rank.is_good for rank in self.ranks)

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": "compilation",
            "model_type": self.model_type,
            "dtype": self.dtype,
            "data_parallel": self.topology.data_parallel,
            "model_parallel": self.topology.model_parallel,
            "pipeline_stage": self.topology.pipeline_stage,
            "num_layers": self.num_layers,
            "compiled_layers": self.layers,
            "ranks": [rank.as_json() for rank in self.ranks],
            "is_good": self.is_good,
        }


def compilation_page(report: Report) -> str:
    blocks = [[*_head(report)], *([*_rank(rank)] for rank in report.ranks)]
    return "\n\n".join("\n".join(block) for block in blocks)


def _head(report: Report) -> Iterator[str]:
    topology = report.topology
    yield f"{report.model_type} compiled for Ascend, simulated: {report.dtype}"
    yield (
        f"data_parallel {topology.data_parallel} x model_parallel {topology.model_parallel} x pipeline_stage "
        f"{topology.pipeline_stage}: {topology.world_size} {'rank' if topology.world_size == 1 else 'ranks'}"
    )
    if topology.pipeline_stage == 1:
        yield _layers(report.layers, range(report.num_layers))
    yield "shapes, types and the choice of kernels are proved; numbers, speed and kernels' insides are not"


def _layers(compiled: Sequence[int], there: range) -> str:
    if len(compiled) == 1 < len(there):
        return f"layer {compiled[0]}, one of {len(there)}, was compiled and stands for all of them"
    if len(compiled) < len(there):
        return f"layers {ranges(compiled)} of {len(there)} were compiled and stand for all of them"
    return f"all {len(there)} layers were compiled"


def _rank(rank: RankReport) -> Iterator[str]:
    if rank.stage.count == 1:
        yield f"rank {rank.rank}"
    else:
        yield f"rank {rank.rank}: {rank.stage}, tensor rank {rank.shard.rank} of {rank.shard.size}"
        yield _layers(rank.layers, rank.stage.layers)
    if rank.graphs:
        rows = [
            [graph.kind, f"{graph.tokens:,}", f"{graph.seconds:.1f}", _outcome(graph)]
            for graph in rank.graphs
        ]
        yield from table([_TITLES, *rows], right=(1, 2))
    refused = sum(graph.rule is not None for graph in rank.graphs)
    yield f"{len(rank.graphs) - refused} graphs compiled, {refused} refused"
    if rank.error is not None:
        yield f"no more graphs were tried: {printable(rank.error)}"
    yield _memory(rank.memory)


def _outcome(graph: CompiledGraph) -> str:
    if graph.rule is None:
        shown = graph.counts(FUSED) | graph.counts(COLLECTIVES)
        return ", ".join(f"{count} {name}" for name, count in shown.items()) or "none fused"
    where = f" in {graph.layer}" if graph.layer else ""
    return printable(f"refused: {graph.operator or 'an operator'}{where}: {graph.rule}")


def _memory(memory: DeviceMemory) -> str:
    adapters = f", adapters {size(memory.adapters)}" if memory.adapters else ""
    taken = (
        f"memory: weights {size(memory.weights)}{adapters}, cache {size(memory.cache)} "
        f"({memory.tokens:,} tokens of {size(memory.bytes_per_token)})"
    )
    verdict = "fits" if memory.fits else "does NOT fit"
    return (
        f"{taken}: {verdict} {size(memory.available)}, which would hold {memory.most_tokens:,} cached tokens "
        "beside the weights"
    )
