"""`mindbatch inspect`: shows the content of a checkpoint or a strategy file, and how a model would run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar

from mindbatch.checkpoint.error_lines import collecting, raise_if_any
from mindbatch.checkpoint.folders.digests import DIGESTS_NAME
from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, file_names, has_file, read_config
from mindbatch.checkpoint.folders.foreign_folders import foreign_folder
from mindbatch.checkpoint.folders.tensor_set import (
    HUGGING_FACE,
    ITERATION,
    RANKS,
    Source,
    TensorSet,
    open_source,
    seem_copies,
)
from mindbatch.checkpoint.formats.gguf import POINTER
from mindbatch.checkpoint.iterations.metadata import placements
from mindbatch.checkpoint.strategy.strategy import Strategy
from mindbatch.checkpoint.strategy.strategy_file import is_strategy_file, read_strategy
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.config.paths import checkpoint_error, resolved
from mindbatch.config.schema import TaskConfig, option
from mindbatch.config_json.foreign_models import foreign_model, is_described
from mindbatch.config_json.forms import text_part
from mindbatch.fields import kinds as kind
from mindbatch.io.amounts import size
from mindbatch.io.errors import EXIT_DONE, CheckpointError, ConfigError
from mindbatch.io.screen_text import show_json, show_page
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8
from mindbatch.model_spec.described_folder import division_errors
from mindbatch.model_spec.registry import chosen_type, nearest_supported
from mindbatch.tasks.inspect_page import (
    RankContent,
    source_page,
    strategy_json,
    strategy_page,
)

_COPIES = "the rank folders hold copies of one checkpoint: their tensors begin alike; reshard reads the first"
NO_TOKENIZER = "prompts are token ids, or model.tokenizer=FOLDER has one"
NO_CHATS = "prompts are texts; messages need chat_template.jinja in the folder"
NO_CHECKPOINT = "path: must be given: mindbatch inspect PATH, a file or folder"
NUMBERS_OF_RANKS = (2, 4, 8, 16, 32, 64)
MAX_DIFFERENCES = 3


@dataclass
class InspectConfig(TaskConfig):
    """The keys of `mindbatch inspect`."""

    positional: ClassVar[tuple[str, ...]] = ("path",)

    path: str | None = option(
        None, "a .safetensors or .ckpt file, a model folder, rank folders, or a strategy file", is_path=True
    )
    filter: str | None = option(None, "show the names that match this pattern, such as *.bias")
    limit: int = option(200, "largest number of tensors shown; all are counted", kind.count())
    digests: bool = option(False, "compute the SHA-256 of every tensor, and compare it with digests.json")
    format: str = option("text", "text or json", kind.choice("text", "json"))
    verbose: bool = option(False, "show tracebacks")

    def resolve_paths(self) -> list[str]:
        errors = [] if self.path is not None else [NO_CHECKPOINT]
        self.path = resolved("path", self.path, checkpoint_error, errors, is_model=True)
        return errors


def run(config: InspectConfig) -> int:
    """Runs the task. Raises CheckpointError after the page if digests show damage."""
    assert config.path is not None
    path = Path(config.path)
    if _holds_strategies(path):
        _show_strategy(config, read_strategy(path))
        return EXIT_DONE
    model_config, reasons = _model_config(path)
    errors: list[str] = []
    try:
        stored_as = None if reasons else _quantised_as(path, model_config)
        with _opened(path) as source:
            if source.kind == ITERATION:
                placements(source.path, source.ranks)  # what its metadata.json says is checked, too
            ranks = [_content(rank, tensors, config, errors) for rank, tensors in enumerate(source.ranks)]
            stored_as = stored_as or _stored_as(source.ranks[0])
            has_copies = source.kind == RANKS and seem_copies(source.ranks)
    except CheckpointError as error:
        raise CheckpointError(dict.fromkeys([*reasons, *error.lines])) from None
    support = None
    if not reasons and source.kind in (HUGGING_FACE, ITERATION) and "model_type" in model_config:
        support, reasons = model_support(path)
    if config.format == "json":
        quantised = {} if stored_as is None else {"quantised": stored_as}
        runs = {} if support is None else {"runs": asdict(support)}
        shown = [rank | {"tensors": rank["tensors"][: config.limit]} for rank in ranks]
        content = {"path": str(source.path), "kind": source.kind, "ranks": shown}
        show_json(content | quantised | runs | {"not_run": reasons})
    else:
        verdict = [*(support.lines() if support else ()), *map("not run by this version: {}".format, reasons)]
        verdict += nearest_lines(model_config) if reasons and model_config else ()
        verdict += [_COPIES] if has_copies else []
        show_page(source_page(source, ranks, verdict, config.limit, config.digests, config.filter, stored_as))
    raise_if_any(errors)
    return EXIT_DONE


def _show_strategy(config: InspectConfig, strategy: Strategy) -> None:
    assert config.path is not None
    layouts = [layout for layout in strategy.layouts if _matches(layout.name, config)]
    if config.format == "json":
        show_json(strategy_json(config.path, strategy, layouts, config.limit))
    else:
        show_page(strategy_page(config.path, strategy, layouts, config.limit))


def _holds_strategies(path: Path) -> bool:
    """True if the file, or every file of the folder that may be one, is a strategy file."""
    if path.is_file():
        return path.suffix in (".ckpt", ".json") and is_strategy_file(path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: not a regular file; must be a file or a folder")
    files = [path / name for name in file_names(path) if name.endswith(".ckpt")]
    return bool(files) and all(map(is_strategy_file, files))


def _model_config(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Reads config.json, {} if it cannot be read, and the reasons why its model cannot be run.

    There is no reason if no model is expected.
    """
    if not path.is_dir():
        return {}, []
    if not has_file(path, CONFIG_NAME):
        foreign = foreign_folder(path)
        return {}, [f"{path}: {foreign}"] if foreign else []
    config: dict[str, Any] = {}
    reasons: list[str] = []
    with collecting(reasons):
        config = read_config(path)
        chosen_type(config, "auto", str(path / CONFIG_NAME))
    return config, reasons


def _quantised_as(path: Path, config: Mapping[str, Any]) -> str | None:
    """Names the quantization of a folder's matrices; None for floats.

    Raises:
        CheckpointError: they contradict that, or cannot be read.
    """
    if not path.is_dir() or not is_described(path, config):
        return None
    from mindbatch.config_json.quantisation import open_whole  # NumPy, which other folders do not need

    with open_whole(path, config) as folder:
        return _stored_as(folder)


def _stored_as(folder: TensorSet) -> str | None:
    title: str | None = getattr(folder, "quantised", None)
    return None if title is None else f"{title}, {getattr(folder, 'stored_bits', 0):.1f} bits a number"


def _opened(path: Path) -> Source:
    """The source, or the folder of llama.cpp's files, as a model's."""
    if not (path.is_dir() and has_file(path, POINTER)):
        return open_source(path)
    from mindbatch.checkpoint.gguf.unpacked import open_home  # with NumPy, as above

    return Source(path, HUGGING_FACE, [open_home(path)])


def _matches(name: str, config: InspectConfig) -> bool:
    return config.filter is None or fnmatchcase(name, config.filter)


def _content(rank: int, tensors: TensorSet, config: InspectConfig, errors: list[str]) -> RankContent:
    """Lists a rank's tensors and texts; with digests=true everything is read.

    errors: list that gets a line for each damage.
    """
    names = [name for name in tensors.tensors if _matches(name, config)]
    computed = tensors.computed_digests(names) if config.digests else {}
    if config.digests:
        errors += tensors.damages(computed) + tensors.checksum_errors()
    rows = [_tensor_json(tensors, name, computed.get(name, tensors.digest(name))) for name in names]
    return {
        "rank": rank,
        "path": str(tensors.path),
        "count": len(rows),
        "bytes": sum(row["bytes"] for row in rows),
        "tensors": rows,
        "texts": {name: text for name, text in tensors.texts.items() if _matches(name, config)},
        "witness": _witness(tensors),
    }


def _tensor_json(tensors: TensorSet, name: str, digest: str | None) -> dict[str, Any]:
    tensor = tensors.info(name)
    return {
        "name": name,
        "dtype": tensor.dtype,
        "shape": [*tensor.shape],
        "bytes": tensor.nbytes,
        "file": tensors.file_of[name],
        "sha256": digest,
    }


def _witness(tensors: TensorSet) -> str | None:
    """Names the checksum that shows a changed bit; None if there is none."""
    if tensors.digests is not None:
        return DIGESTS_NAME
    return "CRC-32" if all(file.crc for file in tensors.files.values()) else None


@dataclass(frozen=True)
class ModelSupport:
    """Properties of a model folder run by `generate` or `batch` with the defaults of their options.

    positions: largest number of tokens of prompt and output.
    kept_numbers: number of weights that stay as they are stored, in kept_bytes with their scales.
    cached_numbers: numbers in the cache for a token's keys and values.
    model_parallel: numbers of ranks that the model can be sharded over.
    not_on_ascend: reasons why it does not run on Ascend; () if it does.
    tokenizer, chat_template: True if the folder has one.
    embeddings: lines about the folder's settings of embeddings.
    """

    model_type: str
    parameters: int
    positions: int
    kept_numbers: int
    kept_bytes: int
    cached_numbers: int
    model_parallel: tuple[int, ...]
    not_on_ascend: tuple[str, ...]
    tokenizer: bool
    chat_template: bool
    embeddings: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        weights = ", ".join(
            f"{size(self.parameters * kind.itemsize)} in {kind.name}" for kind in (FLOAT32, BFLOAT16, INT8)
        )
        ranks = ", ".join(map(str, (1, *self.model_parallel)))
        yield f"runs as {self.model_type}: {self.parameters:,} parameters, up to {self.positions:,} tokens"
        yield f"  on a CPU: {weights}; a token of the cache {size(self.cached_numbers * FLOAT32.itemsize)}"
        if self.kept_numbers:
            rest = (self.parameters - self.kept_numbers) * FLOAT32.itemsize
            yield (
                f"  by default {self.kept_numbers / self.parameters:.0%} of them stay as stored, in "
                f"{8 * self.kept_bytes / self.kept_numbers:.1f} bits: {size(self.kept_bytes + rest)}"
            )
        if self.not_on_ascend:
            yield f"  not on Ascend: {'; '.join(self.not_on_ascend)}"
        else:
            num_bytes, token = self.parameters * BFLOAT16.itemsize, self.cached_numbers * BFLOAT16.itemsize
            yield f"  on Ascend: {size(num_bytes)} in {BFLOAT16.name}; a token of the cache {size(token)}"
        yield f"  parallel.model_parallel: {ranks}"
        if not self.tokenizer:
            yield f"  no tokenizer: {NO_TOKENIZER}"
        elif not self.chat_template:
            yield f"  no chat template: {NO_CHATS}"
        yield from (f"  {line}" for line in self.embeddings)


def model_support(path: Path) -> tuple[ModelSupport | None, list[str]]:
    """Describes how a model folder runs, by its configuration, heads and tokenizer, or why it does not."""
    # NumPy and tokenizers, which pages of other files do not need
    from mindbatch.backends.loader import kept_as_codes
    from mindbatch.decoding.folder_embeddings import folder_embeddings
    from mindbatch.loading.providers import open_model
    from mindbatch.prompts.tokenizer import Tokenizer

    try:
        folder, spec = open_model(ModelConfig(checkpoint_name_or_path=str(path)))
        tokenizer = Tokenizer.load(path)
    except (CheckpointError, ConfigError) as error:
        return None, [*error.lines]
    embeddings = folder_embeddings(path)
    support = ModelSupport(
        spec.model_type,
        spec.num_parameters,
        spec.max_positions,
        *kept_as_codes(spec, folder),
        spec.cached_numbers,
        tuple(ranks for ranks in NUMBERS_OF_RANKS if not division_errors(spec.architecture, ranks)),
        tuple(spec.ascend_errors(RuntimeConfig().block_size)),
        tokenizer is not None,
        tokenizer is not None and tokenizer.has_chat_template,
        (*embeddings.errors, *embeddings.notes(None)),
    )
    return support, []


def nearest_lines(config: Mapping[str, Any]) -> Iterator[str]:
    """Yields lines on the nearest type that runs, and its differences; nothing if none is near."""
    near = nearest_supported(config, CONFIG_NAME)
    if near is None:
        return
    if near.model_type == text_part(config).get("model_type"):
        if foreign_model(text_part(config)):
            yield f"nearest supported type: {near.model_type}, its own; what differs is said above"
        return
    yield f"nearest supported type: {near.model_type}; " + (
        "what differs:" if near.differences else "no key of config.json differs, tensors may"
    )
    yield from (f"  {difference.partition(';')[0]}" for difference in near.differences[:MAX_DIFFERENCES])
    if (more := len(near.differences) - MAX_DIFFERENCES) > 0:
        yield f"  and {more} more"
