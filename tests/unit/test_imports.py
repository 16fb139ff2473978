"""Imports flow one way, lazy ones too, and MindSpore stays out of what is tested without it."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import requires
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

from mindbatch.io.installation import _EXTRAS

PACKAGE = Path(__file__).parents[2] / "pipeline/mindbatch"

# Which packages (and modules beside them) each may import besides its own; none imports cli, and io none.
LOWEST = {"fields", "io"}
# What only declares: it stands below all that a model is made of, cut or read by.
DECLARATIONS = {"architecture", "kernels.codes", "kernels.memory", "kernels.shapes"}
BELOW_ENGINE = {
    "config_json",
    "decoding",
    "model_spec",
    "models",
    "checkpoint",
    "prompts",
    "layers",
    "kernels",
    "parallel",
    "config",
}
FACADE = {"engine", "loading", "decoding", "prompts", "config"}
MAY_IMPORT: dict[str, set[str]] = {
    "io": set(),
    "fields": {"io"},
    "parallel": LOWEST,
    "kernels.memory": LOWEST,
    "kernels.codes": set(),
    "kernels.shapes": set(),
    "kernels.native_library": LOWEST,
    "architecture": {"kernels.shapes", "parallel"},
    "kernels": {"parallel", "kernels.codes", "kernels.memory", "kernels.native_library", "kernels.shapes"}
    | LOWEST,
    "layers": {"kernels", "parallel"} | DECLARATIONS | LOWEST,
    "checkpoint": {"parallel"} | DECLARATIONS | LOWEST,
    "decoding": {"kernels.native_library"} | LOWEST,
    "prompts": {"checkpoint"} | LOWEST,
    "config_json": {"checkpoint", "decoding"} | DECLARATIONS | LOWEST,
    "models": {"config_json", "layers", "kernels"} | DECLARATIONS | LOWEST,
    "model_spec": {"checkpoint", "config_json", "kernels", "layers", "models", "parallel"}
    | DECLARATIONS
    | LOWEST,
    "hub": {"checkpoint"} | LOWEST,
    "remote": {"hub"} | LOWEST,
    "config": {"checkpoint", "config_json", "decoding", "hub", "model_spec", "kernels.memory", "remote"}
    | LOWEST,
    "engine": {"backends", "decoding", "kernels", "parallel", "prompts"} | DECLARATIONS | LOWEST,
    "loading": BELOW_ENGINE | DECLARATIONS | {"backends", "engine"} | LOWEST,
    "message_formats": LOWEST,
    "replicas": {"checkpoint", "config", "decoding", "engine", "kernels", "launch", "loading", "parallel"}
    | {"kernels.native_library"}
    | LOWEST,
    "llm": FACADE | {"replicas"} | LOWEST,
    "async_llm": {"decoding", "engine", "loading", "llm", "prompts"} | LOWEST,
    "ledger": LOWEST,
    "dataset": {"prompts", "decoding", "config", "message_formats", "remote"} | LOWEST,
    "run": {
        "dataset",
        "message_formats",
        "hub",
        "remote",
        "ledger",
        "prompts",
        "decoding",
        "engine",
        "loading",
        "checkpoint",
        "config",
        "kernels.native_library",
        "parallel",
    }
    | LOWEST,
    "server": FACADE | {"async_llm", "dataset", "ledger", "llm", "message_formats", "run"} | LOWEST,
    "ray": {"llm", "replicas", "run", "dataset", "engine", "loading", "decoding", "config"} | LOWEST,
    "lm_eval": {"llm", "engine", "loading", "decoding", "prompts"} | LOWEST,
    "evaluation": {"decoding", "engine", "loading", "prompts"} | LOWEST,
    "launch": {"config", "kernels.native_library", "parallel"} | LOWEST,
    "ascend_simulation": BELOW_ENGINE | DECLARATIONS | {"backends", "engine", "loading"} | LOWEST,
    "tasks": FACADE
    | {"kernels.native_library"}
    | {
        "ascend_simulation",
        "llm",
        "backends",
        "kernels",
        "checkpoint",
        "config_json",
        "model_spec",
        "parallel",
    }
    | DECLARATIONS
    | {"run", "dataset", "evaluation", "ledger", "launch", "remote", "replicas", "server"}
    | LOWEST,
    "cli": {"tasks", "config"} | LOWEST,
    "__init__": {"llm", "async_llm", "decoding", "engine"} | LOWEST,
    "__main__": {"cli"} | LOWEST,
    "backends": {"config"} | BELOW_ENGINE | DECLARATIONS | LOWEST,
}
# The same within checkpoint/: which of its packages, and modules beside them, each may import.
GROUND = {"error_lines", "json_object"}
CHECKPOINT_MAY_IMPORT: dict[str, set[str]] = {
    "error_lines": set(),
    "json_object": GROUND,
    "formats": GROUND,
    "folders": GROUND | {"formats", "placement"},
    "placement": GROUND,
    "quantised": GROUND | {"formats", "folders"},
    "gguf": GROUND | {"formats", "folders"},
    "strategy": GROUND | {"formats", "folders", "placement"},
    "names": GROUND | {"placement"},
    "lora": GROUND | {"formats", "folders", "placement"},
    "iterations": GROUND | {"formats", "folders", "placement", "strategy"},
    "reshard": GROUND | {"formats", "folders", "placement", "lora"},
    "transform": GROUND | {"formats", "folders", "placement", "strategy", "lora", "reshard"},
    "transform_lora": GROUND | {"formats", "folders", "placement", "lora", "transform"},
}
# The modules that may import MindSpore; all others are plain Python and NumPy.
MINDSPORE = {
    "ascend_simulation/layouts.py",
    "engine/step_graphs.py",
    "kernels/ascend/*",
    "kernels/mindspore_kernels.py",
    "parallel/context.py",
    "parallel/hand_over.py",
    "backends/mindformers/*",
}
MINDSPORE_FREE = {
    "kernels/ascend/step.py",
    "backends/mindformers/arguments.py",
    "backends/mindformers/families.py",
    "backends/mindformers/provider.py",
    "backends/mindformers/imports.py",
    "*/__init__.py",
}
TRANSFORMERS = {"prompts/tokenizer_files.py", "backends/mindformers/*"}
# By library: the modules that may import it, and those among them that may not.
PLACES: dict[str, tuple[set[str], set[str]]] = {
    "mindspore": (MINDSPORE, MINDSPORE_FREE),
    "mindformers": ({"ascend_simulation/layouts.py", "backends/mindformers/*"}, set()),
    "transformers": (TRANSFORMERS, set()),
    "torch": (set(), set()),
    "pandas": ({"ray/batches.py"}, set()),
    "ray": ({"replicas/ray_cluster.py", "launch/ray_placement.py", "ray/generate.py"}, set()),
    "lm_eval": ({"lm_eval/*"}, set()),
    "starlette": ({"server/*"}, {"server/schema.py", "server/records.py"}),
    "uvicorn": ({"server/serving.py", "server/connections.py"}, set()),
    "prometheus_client": ({"server/metrics.py"}, set()),
}
# The modules that may import the simulation of Ascend, each where its task asks for a compilation.
SIMULATING = {"tasks/compile/task.py", "tasks/layout/mindformers.py"}


class Imports(NamedTuple):
    """Dotted names of the imports of a module. eager: those that run when it is imported itself."""

    all: tuple[str, ...]
    eager: tuple[str, ...]


@cache
def imported() -> dict[Path, Imports]:
    """What each module imports, read when the first test asks and not where tests are only listed."""
    found = {}
    for module in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(module.read_text())
        found[module] = Imports(tuple(imports(tree)), tuple(eager(tree)))
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all statements below it; expressions, which import nothing, are most of a tree."""
    yield node
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        below = getattr(node, field, ())
        for each in below if isinstance(below, list) else ():
            yield from statements(each)


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names of all imports below a node, lazy ones included."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            yield from (f"{module}.{alias.name}" for alias in node.names)


def eager(tree: ast.Module) -> Iterator[str]:
    """Imports that run when the module is imported."""
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from imports(node)


def package_of(dotted: str) -> str:
    """The subpackage of a module below mindbatch; of one at the top, or with rules of its own, its name."""
    parts = dotted.split(".")
    declared = ".".join(parts[:2])
    return declared if declared in MAY_IMPORT else parts[0]


def dotted(module: Path) -> str:
    return ".".join(module.relative_to(PACKAGE).with_suffix("").parts)


def named(module: Path, patterns: set[str]) -> bool:
    name = module.relative_to(PACKAGE).as_posix()
    return any(fnmatch(name, pattern) for pattern in patterns)


def short(module: Path) -> str:
    return module.relative_to(PACKAGE).as_posix()


def test_imports_flow_one_way() -> None:
    faults = []
    for module, (names, _) in imported().items():
        home = package_of(dotted(module))
        for name in names:
            own = name.removeprefix("mindbatch.")
            if own != name and package_of(own) not in MAY_IMPORT[home] | {home}:
                faults.append(f"{short(module)} imports {name}")
    assert not faults


def test_imports_within_checkpoint_flow_one_way() -> None:
    faults = []
    for module, (found, _) in imported().items():
        home, *rest = module.relative_to(PACKAGE).with_suffix("").parts
        if home == "checkpoint":
            allowed = CHECKPOINT_MAY_IMPORT.get(rest[0], set()) | {rest[0]}
            names = [name for name in found if name.startswith("mindbatch.checkpoint.")]
            faults += [
                f"{short(module)} imports {name}" for name in names if name.split(".")[2] not in allowed
            ]
    assert not faults


def test_no_modules_import_each_other() -> None:
    """Neither directly nor by way of others, lazily or for types alone."""
    modules = {dotted(module).removesuffix(".__init__"): found.all for module, found in imported().items()}
    entered = {
        name: {
            found if found in modules else found.rpartition(".")[0]
            for found in (each.removeprefix("mindbatch.") for each in names if each.startswith("mindbatch."))
        }
        & modules.keys() - {name}
        for name, names in modules.items()
    }
    TopologicalSorter(entered).prepare()  # raises CycleError, which names the circle


def test_heavy_libraries_have_their_places() -> None:
    faults = []
    for module, (names, _) in imported().items():
        used = {name.split(".")[0] for name in names}
        for library, (allowed, refused) in PLACES.items():
            place = named(module, allowed) and not named(module, refused)
            if library in used and not place:
                faults.append(f"{short(module)} imports {library}")
    assert not faults


def test_transformers_and_mindformers_are_imported_lazily() -> None:
    lazily = {"transformers", "mindformers"}
    assert not [
        short(module)
        for module, found in imported().items()
        if {name.split(".")[0] for name in found.eager} & lazily
    ]


def test_the_simulation_of_ascend_is_imported_where_a_task_asks_for_it() -> None:
    """Lazily: no other command needs it."""
    simulating = {
        short(module): found
        for module, found in imported().items()
        if package_of(dotted(module)) != "ascend_simulation"
        and any(name.startswith("mindbatch.ascend_simulation") for name in found.all)
    }
    assert {*simulating} == SIMULATING
    eager = [name for found in simulating.values() for name in found.eager]
    assert not [name for name in eager if name.startswith("mindbatch.ascend_simulation")]


@pytest.mark.parametrize("rule", [MAY_IMPORT, CHECKPOINT_MAY_IMPORT])
def test_the_rule_itself_has_no_circle(rule: dict[str, set[str]]) -> None:
    order: list[str] = []
    while len(order) < len(rule):
        ready = [name for name, below in rule.items() if name not in order and below - {name} <= set(order)]
        assert ready, "the rule itself goes round in a circle"
        order += ready


LIGHT = [
    "import mindbatch",
    "import mindbatch.cli",
    "import mindbatch.engine.engine",
    "import mindbatch.model_spec.registry, mindbatch.models.llama, mindbatch.models.gpt2",
    "from mindbatch import LLM, DecodingParams",
    "import mindbatch.io.storage, mindbatch.ledger.ledger, mindbatch.ledger.run_record",
    "import mindbatch.dataset.dataset, mindbatch.dataset.rows",
    "import mindbatch.run.job",
    "import mindbatch.message_formats.formats",
    "import mindbatch.ray, mindbatch.replicas.ray_cluster",
    "import mindbatch.lm_eval, mindbatch.lm_eval.__main__",
    "import mindbatch.tasks.plan.task, mindbatch.tasks.layout.mindformers, mindbatch.tasks.compile.task",
    "import mindbatch.tasks.diff, mindbatch.tasks.runs.task, mindbatch.tasks.runs.watch",
    "import mindbatch.tasks.rank_table, mindbatch.tasks.inspect",
    "import mindbatch.evaluation.rendering, mindbatch.evaluation.scores",
    "import mindbatch.checkpoint.placement.placements, mindbatch.checkpoint.strategy.placements",
    "import mindbatch.checkpoint.placement.proof, mindbatch.tasks.layout.ranks",
    "import mindbatch.tasks.layout.ranks",
    "import mindbatch.engine.model_runner, mindbatch.kernels.native, mindbatch.layers.decoder",
    "import mindbatch.backends.loader, mindbatch.backends.adapter_weights, mindbatch.backends.model",
]
HEAVY = (
    "mindspore",
    "mindformers",
    "transformers",
    "torch",
    "pyarrow",
    "pandas",
    "ray",
    "sacrebleu",
    "lm_eval",
)


def test_importing_brings_no_heavy_library() -> None:
    check = f"print([name for name in {HEAVY} if name in sys.modules])"
    program = "\n".join(["import sys", *(f"{statement}\n{check}" for statement in LIGHT)])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert dict(zip(LIGHT, done.stdout.splitlines(), strict=True)) == dict.fromkeys(LIGHT, "[]")


NAMES = {"google": "protobuf", "hydra": "hydra-core", "yaml": "pyyaml", "_typeshed": ""}
"""The distribution of a package that is not named after it; the last is for types alone."""
BROUGHT = {"h11": "uvicorn", "pandas": "ray", "tqdm": "lm_eval"}
"""Optional packages that come with another, where that is used."""
NOTEBOOK = "IPython"
"""Imported in a notebook alone, whose program it is."""


def distribution_of(package: str) -> str:
    return NAMES.get(package, package.lower().replace("_", "-"))


def core() -> set[str]:
    """The distributions that are installed with MindBatch, whatever for."""
    requirements = [Requirement(line) for line in requires("mindbatch") or ()]
    return {each.name.lower().replace("_", "-") for each in requirements if each.marker is None}


def others(names: tuple[str, ...]) -> set[str]:
    """The packages among dotted names that are neither Python's nor MindBatch's."""
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"mindbatch", "_typeshed"}


def test_every_package_is_of_the_core_or_brought_by_an_extra() -> None:
    """One that others happen to bring today may be gone tomorrow."""
    unknown = {
        f"{short(module)} imports {package}"
        for module, found in imported().items()
        for package in others(found.all) - {NOTEBOOK}
        if distribution_of(package) not in core() and BROUGHT.get(package, package) not in _EXTRAS
    }
    assert not unknown


@pytest.mark.slow
def test_every_module_is_imported_with_the_core_alone_but_those_of_optional_packages() -> None:
    """What brings an optional package as it is imported is itself imported where it is used."""
    optional = {
        package
        for found in imported().values()
        for package in others(found.all)
        if distribution_of(package) not in core()
    }
    assert {"mindspore", "mindformers", "transformers", "starlette", "ray"} <= optional
    names = [
        dotted(module).removesuffix(".__init__") for module in imported() if "__main__" not in module.name
    ]
    program = f"""
import importlib, sys
sys.modules.update(dict.fromkeys({optional}))
for name in {names}:
    try:
        importlib.import_module("mindbatch." + name if name != "__init__" else "mindbatch")
    except ModuleNotFoundError as error:
        print(name, error.name.split(".")[0])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    failed = dict(map(str.split, done.stdout.splitlines()))
    for name, package in failed.items():
        module = PACKAGE / (name.replace(".", "/") + ".py")
        module = module if module.is_file() else PACKAGE / name.replace(".", "/") / "__init__.py"
        assert named(module, PLACES[BROUGHT.get(package, package)][0]), (name, package)
    assert {"server.serving", "kernels.ascend.kernels"} <= failed.keys()
    assert not {"cli", "llm", "server.schema", "backends.native", "prompts.tokenizer_files"} & failed.keys()
