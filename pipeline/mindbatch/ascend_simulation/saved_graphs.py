"""Reads the graphs that MindSpore saves: the kernels of compiled graphs, and the errors of refused ones."""

import re
from collections import Counter
from pathlib import Path

_GRAPHS = "graph_build_*.ir"
_REMOVED = ("*.ir", "*.pb")
_NODE = re.compile(r"^  %\d+\([^)]*\) = (?:PrimFunc_)?([A-Za-z]\w*)\(", re.MULTILINE)
_NO_KERNELS = frozenset(
    {"Depend", "Load", "MakeTuple", "Partial", "TupleGetItem", "UpdateState", "call"}
    | {"Reshape", "ExpandDims", "Squeeze", "Flatten"}  # they move no data
)
_OPERATOR = (
    re.compile(r"[Ff]or primitive\s?\[(\w+)\]"),
    re.compile(r"[Ff]or '(\w+)'"),
    re.compile(r"[Ff]or (?:op|kernel|operator)\s?\[?(\w+)"),
    re.compile(r"(\w+)-op\d+"),
    re.compile(r"\bPrimFunc_(\w+)"),
)
_SCOPE = re.compile(r"\bDefault/([\w./-]+)")
_GRAPH_SCOPE = re.compile(r"#scope: \(Default/?([\w./-]*)\)")
_TENSOR = re.compile(r"Tensor\[(\w+)\]")
_END_OF_STACK = "# The total of function graphs in evaluation stack"
_NUMBER = re.compile(r"__n\d+$")  # the number of a recorded call
_LONGEST_RULE = 1000
_OUTERMOST = "cell."  # the wrapper of a model in a graph


def launched(folder: Path) -> dict[str, int]:
    """Counts the launches by kernel in the graphs compiled last, and removes their files.

    folder: the folder in which MindSpore saves graphs.
    """
    counts: Counter[str] = Counter()
    for path in folder.rglob(_GRAPHS):
        counts.update(
            name for name in _NODE.findall(path.read_text(errors="replace")) if name not in _NO_KERNELS
        )
    for pattern in _REMOVED:
        for path in folder.rglob(pattern):
            path.unlink()
    return dict(sorted(counts.items()))


def refusal_of(error: BaseException, leftovers: Path) -> dict[str, str]:
    """Extracts "operator", "rule" and "layer" from the error of a compilation.

    The operator is "" if MindSpore names none. The layer has the dotted names of our cells, or is "".

    leftovers: the folder in which MindSpore writes `rank_N/om/analyze_fail.ir`, which is removed.
    """
    text, graphs = str(error), _failed_graphs(leftovers)
    matches = (pattern.search(text) for pattern in _OPERATOR)
    operator = next((match[1] for match in matches if match), "")
    scope = _SCOPE.search(text)
    scopes = [scope[1]] if scope else _GRAPH_SCOPE.findall(graphs.partition(_END_OF_STACK)[0])
    rule = " ".join(_TENSOR.sub(r"\1", first_line(error)).split())
    layer = layer_name(scopes[-1] if scopes else "", operator)
    return {"operator": operator, "rule": rule[:_LONGEST_RULE], "layer": layer}


def layer_name(scope: str, operator: str = "") -> str:
    """Converts decoder-Recorded/layers__0__attention__n7-CachedAttention to decoder.layers.0.attention."""
    parts = [
        _NUMBER.sub("", part.partition("-")[0]).replace("__", ".")
        for part in scope.split("/")
        if part and not part.startswith(operator or "/")
    ]
    return ".".join(parts).removeprefix(_OUTERMOST)


def _failed_graphs(leftovers: Path) -> str:
    dumps = [*leftovers.glob("**/analyze_fail.ir")]
    text = "".join(path.read_text(errors="replace") for path in dumps)
    for path in dumps:
        path.unlink()
    return text


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip()
