"""The kernels that MindSpore would launch for a graph, read off the text that it saves of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

_GRAPHS = "graph_build_*.ir"
_LEFT_BESIDE = ("*.ir", "*.pb")
_NODE = re.compile(r"^  %\d+\([^)]*\) = (?:PrimFunc_)?([A-Za-z]\w*)\(", re.MULTILINE)
_NO_KERNELS = frozenset(
    {"Depend", "Load", "MakeTuple", "Partial", "TupleGetItem", "UpdateState", "call"}
    | {"Reshape", "ExpandDims", "Squeeze", "Flatten"}  # no data is moved
)
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


def launched(folder: Path) -> dict[str, int]:
    """Counts the launches of each kernel by the graphs compiled last, and removes MindSpore's files of them.

    folder: where MindSpore saves graphs.
    """
    found: Counter[str] = Counter()
    for path in folder.rglob(_GRAPHS):
        found.update(
            name for name in _NODE.findall(path.read_text(errors="replace")) if name not in _NO_KERNELS
        )
    for pattern in _LEFT_BESIDE:
        for path in folder.rglob(pattern):
            path.unlink()
    return dict(sorted(found.items()))


def fused(kernels: Mapping[str, int]) -> dict[str, int]:
    """Those of FUSED."""
    return {name: count for name, count in kernels.items() if name in FUSED}


def collectives(kernels: Mapping[str, int]) -> dict[str, int]:
    """Those of COLLECTIVES."""
    return {name: count for name, count in kernels.items() if name in COLLECTIVES}
