"""Names and prose use the words of the field, one name stands for one thing, and names in prose exist."""

import ast
import builtins
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pipeline/mindbatch"
TOOLS = ROOT / "tools"
# Names that say nothing of the thing: a variable, parameter or field is called by its noun.
PRONOUNS = {"each", "held", "given", "said", "found", "its", "beside", "made", "how", "told", "what", "who"}
# Words that no name has as a part, and what to say.
NAME_WORDS = {
    "place": "location, slot, position, device, rank",
    "places": "locations, slots, positions, devices, ranks",
    "placed": "located, positioned",
    "asked": "requested",
    "settle": "resolve",
    "settles": "resolves",
    "settled": "resolved",
    "told": "description, reported",
    "how": "exit_reason, method, description",
    "front": "coordinator",
    "deal": "dispatch",
    "deals": "dispatches",
    "dealt": "dispatched",
    "dealing": "RequestQueue",
    "blamed": "failed_result",
    "watched": "health, monitored",
    "doing": "activity",
    "stand": "is_stuck, status",
    "stands": "is_stuck, status",
    "standing": "status",
    "leave": "deviation, exit",
    "room": "PlacementGroup, space, capacity",
    "rooms": "spaces",
    "house": "package",
    "meet": "join, rendezvous",
    "meets": "joins",
    "meeting": "rendezvous, process group",
    "meetings": "process groups",
    "fellow": "peer",
    "keeper": "reaper",
    "become": "exec",
    "becomes": "exec",
    "turned": "transposed",
    "unturned": "IDENTITY",
    "firsts": "first_positions",
    "farthest": "max",
    "most": "max",
    "trust": "mark_valid",
    "distrust": "mark_invalid",
    "ways": "ranks, size",
    "twin": "replica, draft sequence",
    "twins": "replicas",
    "piece": "shard, region, part",
    "pieces": "shards, regions, parts",
    "origin": "region, source",
    "moves": "copies",
    "lend": "borrow",
    "lent": "borrowed",
    "mutual": "bidirectional",
    "indivisible": "unsplittable",
    "fault": "error",
    "faults": "errors",
}
# Groups of words that no name has, and what to say.
NAME_PHRASES = {
    "gets on": "makes_progress",
    "take back": "requeue",
    "sees ahead": "is_prefix_bidirectional",
    "put off": "DEFERRED_SIGNALS",
    "carry out": "execute_plan",
    "hand over": "stage_links",
    "hand overs": "stage_links",
    "given servers": "server_list",
    "given as": "user_key",
    "started as": "launcher_environment",
    "in place of": "Redirect",
    "of layer": "LayerBound",
    "takes its time": "is_loading_or_compiling",
    "taking turns": "interleaved",
    "own the process": "configure_process",
}
CLASS_NAMES = {"Sets": "MapsTo", "Facts": "PredictYaml", "Leave": "AllowedDeviations"}
# Expressions that no message, docstring or comment has, and what to say.
PROSE = {
    r"places?|placed": "location, slot, position, device, rank; instead of",
    r"asked": "requested",
    r"settle[sd]?": "resolve",
    r"told": "described, reported",
    r"front": "coordinator; before",
    r"deal[st]?|dealt|dealing": "dispatch",
    r"blame[sd]?": "fail",
    r"standing": "status",
    r"fellows?": "peer",
    r"twins?": "replica, draft sequence",
    r"meets?|meetings?": "join, rendezvous",
    r"keepers?": "reaper",
    r"firsts": "first positions",
    r"farthest": "maximum",
    r"distrust|trust": "mark invalid, valid",
    r"lent|lends?": "borrow",
    r"rooms?": "space, capacity",
    r"house": "package",
    r"faults?": "error",
    r"hands? over": "pass",
    r"put off": "defer",
    r"go(es)? before": "override",
    r"(is|are|be) there already": "already exists",
    r"what would do": "try:",
    r"which is said": "is printed",
    r"who listens": "the process at HOST:PORT",
}
COMMENT = re.compile(r"(?:^|\s)#\s*(.*)")
TYPE_NAME = re.compile(r"[A-Z][a-z]\w*")
ASKING = re.compile(r"(See|What|Whether|Of|Where)\b")
# Words that names have all the same, by the beginning of their modules' paths, and why.
KEPT_WORDS = {
    ("run/plan.py", "most"): "`is_most` is a key of the JSON that `mindbatch plan` prints",
    ("prompts/", "piece"): "SentencePiece's own word for a token's text",
    ("prompts/", "pieces"): "the same",
    ("server/guard.py", "origin"): "the header of HTTP",
}
# Texts that have such a word, by file, and why.
KEPT_PROSE: dict[tuple[str, str], str] = {}
# Names of several classes, and why.
SHARED_CLASSES = {
    "Attention": "a model file's; the same role in each",
    "Block": "a model file's; the same role in each",
    "Mlp": "a model file's; the same role in each",
    "DeltaNet": "a model file's; the same role in each",
    "SparseMlp": "a model file's; the same role in each",
}


class Text(NamedTuple):
    """A docstring, comment or message, with the line it begins on."""

    line: int
    text: str


@cache
def modules() -> dict[str, tuple[str, ast.Module]]:
    """Returns source and tree of the modules of the package, by their path in it, and of tools/."""
    sources = {
        path.relative_to(home).as_posix(): path.read_text(encoding="utf-8")
        for root, home in ((PACKAGE, PACKAGE), (TOOLS, ROOT))
        for path in root.rglob("*.py")
    }
    return {path: (source, ast.parse(source)) for path, source in sorted(sources.items())}


def package() -> Iterator[tuple[str, ast.Module]]:
    """Yields path and tree of the modules of the package; each of tools/ is a program of its own."""
    return ((path, tree) for path, (_, tree) in modules().items() if not path.startswith("tools/"))


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields line and name of all that is bound: variables, parameters, fields, functions and classes."""
    for node in ast.walk(tree):
        yield from names_of(node)


def names_of(node: ast.AST) -> list[tuple[int, str]]:
    """Returns line and name of what a node binds."""
    match node:
        case ast.Name(id=str(name), ctx=ast.Store()) | ast.Attribute(attr=str(name), ctx=ast.Store()):
            return [(node.lineno, name)]
        case ast.FunctionDef(name=str(name)) | ast.AsyncFunctionDef(name=str(name)):
            return [(node.lineno, name)]
        case ast.ClassDef(name=str(name)) | ast.ExceptHandler(name=str(name)) | ast.arg(arg=str(name)):
            return [(node.lineno, name)]
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.alias(asname=str(name)):
            return [(node.lineno, name)]
    return []


def words(name: str) -> list[str]:
    """Splits a name at underscores and capitals."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def better_name(name: str, path: str = "") -> str | None:
    """Returns what to say instead of a name of a module, or None where it is good or kept with a reason."""
    if name.strip("_") in PRONOUNS:
        return "the noun of the thing"
    if name in CLASS_NAMES:
        return CLASS_NAMES[name]
    parts = [part for part in words(name) if not is_kept(part, path)]
    spoken = f" {' '.join(parts)} "
    found_words = [NAME_WORDS[part] for part in parts if part in NAME_WORDS]
    found_words += [better for phrase, better in NAME_PHRASES.items() if f" {phrase} " in spoken]
    return "; ".join(found_words) or None


def is_kept(word: str, path: str) -> bool:
    return any(word == kept and path.startswith(start) for start, kept in KEPT_WORDS)


def docstrings(tree: ast.AST) -> Iterator[Text]:
    """Yields the docstrings of modules, classes and functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield Text(node.body[0].lineno, text)


def comments(source: str) -> Iterator[Text]:
    """Yields what stands behind a `#`, in strings too: tokenizing all sources would take ten seconds."""
    for line, text in enumerate(source.splitlines(), 1):
        if "#" in text and (comment := COMMENT.search(text)):
            yield Text(line, comment[1])


def strings(tree: ast.AST) -> Iterator[Text]:
    """Yields the texts in the code: messages, docstrings and what explains a constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Text(node.lineno, node.value)


def explanations(source: str, tree: ast.AST) -> Iterator[Text]:
    """Yields comments, docstrings and the texts below constants and fields."""
    yield from comments(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield Text(node.lineno, str(node.value.value))


def prose_errors(path: str, texts: Iterator[Text]) -> list[str]:
    return [
        f"{path}:{line}: say {better}: {text[max(0, match.start() - 40) : match.end() + 30]!r}"
        for line, text in texts
        for expression, better in PROSE.items()
        for match in re.finditer(rf"\b({expression})\b", text)
        if (path, match.group()) not in KEPT_PROSE
    ]


def class_names(tree: ast.AST) -> Iterator[str]:
    return (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def test_names_are_words_of_the_field() -> None:
    assert not [
        f"{path}:{line}: {name} (say {better})"
        for path, (_, tree) in modules().items()
        for line, name in [(1, Path(path).stem), *bound_names(tree)]
        if (better := better_name(name, path))
    ]


def test_messages_docstrings_and_comments_are_words_of_the_field() -> None:
    errors = [
        error
        for path, (source, tree) in modules().items()
        for error in prose_errors(path, iter([*strings(tree), *comments(source)]))
    ]
    assert not errors, "\n".join(errors)


def test_what_is_kept_is_there() -> None:
    for start, kept in KEPT_WORDS:
        trees = [tree for path, (_, tree) in modules().items() if path.startswith(start)]
        assert any(kept in words(name) for tree in trees for _, name in bound_names(tree))
    texts = {
        path: "\n".join(text for _, text in [*strings(tree), *comments(source)])
        for path, (source, tree) in modules().items()
    }
    assert all(re.search(rf"\b{word}\b", texts[path]) for path, word in KEPT_PROSE)


def test_no_docstring_begins_with_a_question() -> None:
    assert not [
        f"{path}:{line}: {text.splitlines()[0]}"
        for path, (_, tree) in modules().items()
        for line, text in docstrings(tree)
        if ASKING.match(text)
    ]


def test_a_type_name_stands_for_one_thing() -> None:
    """Names of classes, and of types that are assigned at the top of a module."""
    meanings: dict[str, set[str]] = {}
    for path, tree in package():
        for node in tree.body:
            match node:
                case ast.ClassDef(name=name):
                    meanings.setdefault(name, set()).add(path)
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if TYPE_NAME.fullmatch(name):
                    if not ast.unparse(value).startswith("TypeVar("):
                        meanings.setdefault(name, set()).add(ast.unparse(value))
    ambiguous = {
        name: uses for name, uses in meanings.items() if len(uses) > 1 and name not in SHARED_CLASSES
    }
    assert not ambiguous


def test_a_class_name_stands_for_one_thing() -> None:
    counts = Counter(name for _, tree in package() for name in class_names(tree))
    assert {name for name, count in counts.items() if count > 1} == SHARED_CLASSES.keys()


# Names in prose.

NAME = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
BACKTICKED = re.compile(rf"`({NAME})(?:\(\))?`")
DOTTED = re.compile(rf"(?<![\w./`-])({NAME})(?![\w/-])")
SOURCE_FILE = re.compile(r"(?<![\w.*/-])(?:[\w-]+/)*[\w-]+\.(?:py|cpp|h|sh|md)\b")
PLACEHOLDER = re.compile(r"[A-Z]+\.(?:[A-Z]+|py|npz)")
OTHER_FILE = re.compile(r".*\.(json|yaml|yml|txt|model|safetensors|bin|log|part|dir|pkl|toml|ir)")
# By first part, what is another's: libraries, and names that texts make up as an example.
FOREIGN = {*sys.stdlib_module_names, *dir(builtins)} | {
    *(
        "np",
        "numpy",
        "torch",
        "transformers",
        "mindspore",
        "mindformers",
        "nn",
        "mint",
        "ops",
        "ray",
        "lm_eval",
    ),
    *("scipy", "h11", "jinja2", "uvicorn", "pyarrow", "hydra", "oc", "tokenizers", "hyper_parallel"),
}
# The same by the whole name.
FOREIGN_NAMES = {
    *(
        "model.output_layer",
        "tensor_parallel.layers",
        "GenerationMixin._beam_search",
        "_get_logits_processor",
    ),
    *(
        "GenerationMixin._group_beam_search",
        "TrainerSpec.model_type",
        "SentencePiece.type",
        "dataset.map_batches",
        "Dataset.map_batches",
    ),
    *("_partial_", "a03"),
}
FOREIGN_FILES = {
    "table.md",  # as an argument
    *("torch/_utils.py", "torch/serialization.py", "mindspore/train/node_strategy_pb2.py", "sysexits.h"),
    *("sharded_tensor.py", "reshard.py", "checkpoint/metadata.py", "models/qwen3/utils.py"),
    *("models/qwen3_moe/utils.py", "thrift/doc/specs/thrift-compact-protocol.md", "docs/format.md"),
    *(
        "generation/logits_process.py",
        "generation/utils.py",
        "generation/candidate_generator.py",
        "llama.cpp",
    ),
    *("modeling_chatglm.py", "tokenization_chatglm.py", "model/model_minimind.py", "modeling_gptpangu.py"),
    *("configuration_gptpangu.py", "configuration_chatglm.py", "model_minimind.py"),
    *("tokenization_gptpangu.py", "pangualpha_tokenizer.py", "generation/candidate_generator.py"),
}


@cache
def own_files() -> frozenset[str]:
    """Returns the paths of the project's source files and documents, and all tails of them."""
    tops = ("pipeline", "tests", "tools", "benchmarks", "makers", "docs", "scripts", "examples", "configs")
    paths = [path for top in tops for path in (ROOT / top).rglob("*.*")] + [*ROOT.glob("*.*")]
    parts = [path.relative_to(ROOT).parts for path in paths]
    return frozenset("/".join(path[start:]) for path in parts for start in range(len(path)))


class Project(NamedTuple):
    """Names and prose of the package, the tools and the tests.

    used: names that code binds or uses, and the words of its short strings, as keys of JSON.
    members: members of modules, packages and classes, by all tails of their dotted names.
    prose: comments, docstrings and explanations, each with its location.
    """

    used: set[str]
    members: dict[str, set[str]]
    prose: list[tuple[str, str]]


@cache
def project() -> Project:
    """Reads package, tools and tests, without this module, whose names in prose do not exist."""
    result = Project(set(), {}, [])
    for root in (PACKAGE, TOOLS, ROOT / "tests"):
        for file in sorted({*root.rglob("*.py")} - {Path(__file__)}):
            source, path = file.read_text(encoding="utf-8"), file.relative_to(root)
            tree = ast.parse(source)  # not kept: all trees together take half a gigabyte
            nodes = [*ast.walk(tree)]
            result.used.update(path.with_suffix("").parts, *map(used_names, nodes))
            parts = [*root.relative_to(ROOT).parts, *path.with_suffix("").parts]
            add_members(result.members, parts[:-1] if parts[-1] == "__init__" else parts, nodes)
            result.prose.extend(
                (f"{root.name}/{path}:{line}", text) for line, text in explanations(source, tree)
            )
    return result


def used_names(node: ast.AST) -> Iterable[str]:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.alias(name=name):
            return name.split(".")
        case ast.Constant(value=str(text)) if len(text) < 60:
            return re.findall(r"\w+", text)
        case ast.Constant(value=bytes(data)):
            return re.findall(r"\w+", data.decode("latin-1"))
    return []


def add_members(members: dict[str, set[str]], parts: list[str], nodes: list[ast.AST]) -> None:
    """Adds the members of a module, which `parts` name, of its packages and of its classes."""
    of_module = {*scope(nodes)}
    for start in range(len(parts)):
        members.setdefault(".".join(parts[start:]), set()).update(of_module)
        for stop in range(start + 1, len(parts)):
            members.setdefault(".".join(parts[start:stop]), set()).add(parts[stop])
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            members.setdefault(node.name, set()).update(scope(ast.walk(node)))


def scope(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields the names that nodes of a module or class bind or import, and the bases of classes."""
    for below in nodes:
        yield from (name for _, name in names_of(below))
        if isinstance(below, ast.Import | ast.ImportFrom):
            yield from (alias.name for alias in below.names)
        elif isinstance(below, ast.ClassDef):
            yield from (base.id for base in below.bases if isinstance(base, ast.Name))


def has_member(owner: str, name: str) -> bool:
    """True if a module or class has a member, or a class one of its bases."""
    names = project().members.get(owner, set())
    bases = [base for base in names if base[:1].isupper() and base != owner] if owner[:1].isupper() else []
    return name in names or any(has_member(base, name) for base in bases)


@cache
def field_names() -> frozenset[str]:
    """Returns the annotated fields of all classes: of these the keys of configurations are made."""
    return frozenset(
        statement.target.id
        for _, tree in modules().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    )


def exists(name: str) -> bool:
    """True if a name in prose is one of the project, of a library, of a file or made up as an example."""
    first, *rest = parts = name.split(".")
    if first in FOREIGN or name in FOREIGN_NAMES or OTHER_FILE.fullmatch(name) or name in own_files():
        return True
    if not rest:
        return name in project().used
    if field_names().issuperset(parts):
        return True
    for count in range(len(parts) - 1, 0, -1):
        owner = ".".join(parts[:count])
        if owner in project().members:
            return has_member(owner, parts[count]) and project().used.issuperset(parts[count:])
    return project().used.issuperset(parts)


def missing_names(text: str) -> Iterator[str]:
    """Yields the names in backticks, dotted names and files of a text that do not exist."""
    for name in {*BACKTICKED.findall(text)} | {name for name in DOTTED.findall(text) if "." in name}:
        if not (SOURCE_FILE.fullmatch(name) or PLACEHOLDER.fullmatch(name) or exists(name)):
            yield name
    for name in {*SOURCE_FILE.findall(text)} - FOREIGN_FILES:
        if name not in own_files() and not PLACEHOLDER.search(name):
            yield name


def test_names_in_prose_exist() -> None:
    errors = [f"{where}: {name}" for where, text in project().prose for name in missing_names(text)]
    assert not errors, "\n".join(errors)


def test_the_rules_see_what_they_forbid() -> None:
    code = """
import a as said
for each in x:
    match each:
        case {"a": found}:
            lambda given: found
class Front:
    def settle_links(self): self.most_tokens = 1
"""
    bad = {name for _, name in bound_names(ast.parse(code)) if better_name(name)}
    assert bad == {"said", "each", "found", "given", "Front", "settle_links", "most_tokens"}
    assert [text for _, text in docstrings(ast.parse('def f():\n    """See g."""'))] == ["See g."]
    assert prose_errors("a.py", iter([Text(1, "a key that goes before")]))
    assert not prose_errors("a.py", iter([Text(1, "a replacement that overrides")]))
    assert [*missing_names("`run_table.IDLE`, kernels.distances and encoder_graphs.py")] != []
