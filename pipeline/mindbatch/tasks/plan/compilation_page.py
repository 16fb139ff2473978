"""The page that `mindbatch plan compile=true` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mindbatch.io.amounts import size
from mindbatch.io.screen_text import printable
from mindbatch.tasks.formatting import ranges, table
from mindbatch.tasks.plan.compilation_report import CompiledGraph, DeviceMemory, RankReport, Report

_TITLES = ["graph", "tokens", "seconds", "compiled: fused operators and collectives, or refused"]


def compilation_page(report: Report) -> str:
    """The report for people."""
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
        shown = {**graph.fused, **graph.collectives}
        return ", ".join(f"{count} {name}" for name, count in shown.items()) or "none fused"
    where = f" in {graph.layer}" if graph.layer else ""
    return printable(f"refused: {graph.operator or 'an operator'}{where}: {graph.rule}")


def _memory(memory: DeviceMemory) -> str:
    adapters = f", adapters {size(memory.adapters)}" if memory.adapters else ""
    held = (
        f"memory: weights {size(memory.weights)}{adapters}, cache {size(memory.cache)} "
        f"({memory.tokens:,} tokens of {size(memory.bytes_per_token)})"
    )
    verdict = "fits" if memory.fits else "does NOT fit"
    return (
        f"{held}: {verdict} {size(memory.available)}, which would hold {memory.most_tokens:,} cached tokens "
        "beside the weights"
    )
