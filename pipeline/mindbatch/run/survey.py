"""Reads a run's data once before anything costly, and selects its rows."""

import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from mindbatch.config.environment import cache_folder
from mindbatch.config.machine import parse_bytes
from mindbatch.dataset.data_config import MAX_ERRORS, DataConfig
from mindbatch.dataset.data_files import ROW_SUFFIXES
from mindbatch.dataset.dataset import Dataset
from mindbatch.dataset.rows import DataRow, RowFailure, RowMaker
from mindbatch.decoding import DecodingParams
from mindbatch.engine.engine import Engine
from mindbatch.engine.request import Request
from mindbatch.io.errors import ConfigError, PromptError
from mindbatch.io.storage import Storage, WholeFile, reason_of, writing
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.prompts.prompts import STANDARD_INPUT, refuse_chats, token_ids_of
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.remote.address import is_remote
from mindbatch.run.index import RowIndex

STANDARD_INPUT_NAME = "standard input"
"""Name of rows that came from standard input, whichever file keeps them."""
EMPTY_INPUT = "data.path=-: standard input is empty; pipe the rows into the command"
_CHUNK_BYTES = 1 << 20


@dataclass
class DataInput:
    """The data of one command.

    kept: read what an earlier session kept of standard input instead of reading it again.
    recorded: by address, the versions to fetch (`RunRecord.sources`). sources: those of the last dataset.
    """

    data: DataConfig
    storage: Storage
    _: KW_ONLY
    kept: bool = False
    stdin: BinaryIO | None = None
    recorded: Mapping[str, Any] = field(default_factory=dict)
    sources: dict[str, Any] | None = field(default=None, init=False)
    _spooled: Path | None = field(default=None, init=False)

    def dataset(self, folder: RunFolder, outputs: Path | None = None) -> Dataset:
        """Returns the data, to be read as often as needed.

        outputs: the folder whose files are no data, where that is not `folder`.

        Raises:
            ConfigError: there is nothing at data.path, or standard input is empty.
            StorageError: standard input cannot be kept in the folder.
            ChangedObject, MindBatchError: see `remote.sources.local_files`.
        """
        data, name = self.data, None
        path = data.path or ""
        if path == STANDARD_INPUT:
            name = STANDARD_INPUT_NAME
            path = str(folder.standard_input if self.kept else self._spool(folder))
        else:
            path, self.sources = fetched_data(path, self.recorded)
        return Dataset(
            path,
            data.format,
            parse_bytes(data.max_line_bytes),
            name=name,
            outputs=folder.path if outputs is None else outputs,
        )

    def accept(self, folder: RunFolder) -> None:
        """Keeps the copy of standard input for later sessions, as the run continues in this folder.

        Raises:
            StorageError: it cannot be kept.
        """
        if self._spooled is None or self._spooled == folder.standard_input:
            return
        with writing(folder.standard_input):
            self.storage.replace(self._spooled, folder.standard_input)
            self.storage.sync_folder(folder.path)
        self._spooled = folder.standard_input

    def _spool(self, folder: RunFolder) -> Path:
        """Copies standard input to a file of the folder; if it is empty, returns the copy of an earlier
        session."""
        if self._spooled is None:
            spooled = folder.path / f".new.{folder.standard_input.name}"
            size = spool_standard_input(spooled, self.stdin or sys.stdin.buffer, self.storage)
            if size == 0:
                spooled.unlink()
                if not folder.standard_input.is_file():
                    raise ConfigError(EMPTY_INPUT)
                spooled = folder.standard_input
            self._spooled = spooled
        return self._spooled


def fetched_data(
    path: str | Sequence[str], recorded: Mapping[str, Any] | None = None
) -> tuple[str | Sequence[str], dict[str, Any] | None]:
    """Replaces addresses in data.path by local files; returns also what was fetched, None if nothing was.

    Raises as `remote.sources.local_files`.
    """
    paths = [path] if isinstance(path, str) else path
    if not any(map(is_remote, paths)):
        return path, None
    from mindbatch.remote.sources import local_files  # most data is here

    return local_files(paths, ROW_SUFFIXES, recorded or {}, cache_folder() / "objects")


def spool_standard_input(target: Path, stream: BinaryIO, storage: Storage | None = None) -> int:
    """Copies all of the stream into `target`, which appears whole or not at all; the number of bytes.

    Raises:
        ConfigError: the stream cannot be read.
        StorageError: the file cannot be written.
    """
    with WholeFile(target, storage) as file:
        while chunk := _read(stream):
            file.write(chunk)
        return file.tell()


def _read(stream: BinaryIO) -> bytes:
    try:
        return stream.read(_CHUNK_BYTES)
    except OSError as error:
        raise ConfigError(
            f"data.path=-: standard input cannot be read ({error.strerror or error})"
        ) from error


class RowTokens(NamedTuple):
    """Token counts of a row: of its prompt, of an output at most, and the number of its outputs."""

    prompt: int
    output: int
    samples: int

    @property
    def sequence(self) -> int:
        """Prompt and output together, at most."""
        return self.prompt + self.output


@dataclass(frozen=True)
class RowCheck:
    """Checks rows by adding them to an engine and aborting them.

    engine: an engine without other requests.
    params: the run's parameters, which those of a row override. date: see `Prompt`.
    """

    engine: Engine
    tokenizer: Tokenizer | None
    params: DecodingParams
    date: str | None = None

    def count(self, row: DataRow) -> RowTokens | RowFailure:
        """Returns the row's token counts, or its failure."""
        params = row.params(self.params)
        request = Request(row.key, (), params, adapter=row.adapter)
        try:
            max_tokens = self.engine.settings.seq_length
            token_ids = tuple(token_ids_of(row.prompt(self.date), self.tokenizer, max_tokens))
            self.engine.add(replace(request, prompt_token_ids=token_ids))
        except PromptError as error:
            return RowFailure(row.key, row.source, row.line, "prompt", request.reason(error))
        self.engine.abort()
        limit = params.max_total_tokens(len(token_ids), self.engine.settings.seq_length)
        return RowTokens(len(token_ids), limit - len(token_ids), params.num_return_sequences)


_MAX_REASONS = 3


@dataclass(frozen=True)
class Selection:
    """Selected rows: those of some keys, in a shuffled order, without the first few, up to a limit.

    keys: None takes all. shuffle_seed: None keeps the order of the data. max_errors: of the rows that are
    wanted.
    """

    keys: Container[str] | None = None
    shuffle_seed: int | None = None
    skip: int = 0
    limit: int | None = None
    max_errors: int = MAX_ERRORS

    @property
    def last_record(self) -> int | None:
        """The number of records after which nothing is chosen any more, where that is known beforehand."""
        if self.limit is None or self.keys is not None or self.shuffle_seed is not None:
            return None
        return self.skip + self.limit

    def surely_has(self, position: int) -> bool:
        """True if a row that is read, and has a wanted key, is chosen whatever else there is."""
        if self.shuffle_seed is None and self.keys is None:
            return position >= self.skip
        return self.skip == 0 and self.limit is None

    def rank(self, position: int) -> int:
        """Returns the rank of a row in the order of running, 0 to 2**62 - 1."""
        if self.shuffle_seed is None:
            return position
        digest = blake2b(f"{self.shuffle_seed},{position}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 2


def selection_of(data: DataConfig) -> Selection:
    """Returns the selection of the options. Raises ConfigError: the file of keys cannot be read."""
    return Selection(_keys(data.filter_keys), data.shuffle_seed, data.skip, data.limit, data.error_limit)


def _keys(filter_keys: object) -> Container[str] | None:
    if filter_keys is None:
        return None
    if isinstance(filter_keys, str):
        try:
            lines = Path(filter_keys).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ConfigError(
                f"data.filter_keys={filter_keys}: cannot be read ({reason_of(error)})"
            ) from error
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"data.filter_keys={filter_keys}: not UTF-8 text (byte {error.start})"
            ) from error
        return frozenset(line for line in lines if line)
    assert isinstance(filter_keys, list)
    return frozenset(map(str, filter_keys))


Items = Iterator[DataRow | RowFailure]


def survey(
    dataset: Dataset,
    maker: RowMaker,
    selection: Selection,
    index: RowIndex,
    on_row: Callable[[int, int], object] = lambda rows, errors: None,
    check: Callable[[Items], Items] = iter,
) -> None:
    """Adds the selected rows of the dataset to the index.

    on_row: called with the number of rows read so far, and of those with errors.
    check: passes all rows through; may raise at any row or after the last.

    Raises:
        ConfigError: two rows have the same key, no row is selected or usable, too many rows have errors, or
            no row has an optional column.
    """
    num_records = num_errors = 0
    records = enumerate(islice(dataset.records(), selection.last_record))
    for position, item in enumerate(check(maker.make(*numbered) for numbered in records)):
        num_records += 1
        if selection.keys is None or (item.key is not None and item.key in selection.keys):
            index.add(position, selection.rank(position), item)
            if isinstance(item, RowFailure) and selection.surely_has(position):
                num_errors += 1
                if num_errors > selection.max_errors:
                    raise ConfigError(
                        too_many_errors(selection.max_errors, f"{item.location}: {item.reason}")
                    )
        on_row(num_records, num_errors)
    index.close_loading(selection.skip, selection.limit)
    _refuse_hopeless(index, dataset, is_empty=num_records == 0)
    if missing := maker.missing_columns():
        raise ConfigError(missing)


def refusing_chats(tokenizer: Callable[[], Tokenizer | None]) -> Callable[[Items], Items]:
    """Makes a check for `survey`: ConfigError where all usable rows are chats and no template is there."""

    def check(items: Items) -> Items:
        kinds = set()
        for item in items:
            if isinstance(item, DataRow):
                kinds.add("messages" in item.content)
            yield item
        if kinds == {True}:
            refuse_chats(tokenizer(), "messages, which every row has")

    return check


def too_many_errors(limit: int, last: str) -> str:
    """Formats the error that ends a job. last: location and reason of the last error."""
    return f"data.max_errors: more than {limit:,} rows are errors ({last}); a larger number allows more"


def _refuse_hopeless(index: RowIndex, dataset: Dataset, *, is_empty: bool) -> None:
    """Raises ConfigError for data without a usable row, as then the options for prompts are wrong."""
    name = ", ".join(map(str, dataset.files[:_MAX_REASONS]))
    if is_empty:
        raise ConfigError(f"data.path: {name}: holds no row")
    if index.num_rows == 0:
        raise ConfigError(
            f"data.path: no row is chosen of {name}; look at data.skip, data.limit, data.filter_keys"
        )
    if index.num_unusable < index.num_rows:
        return
    failures = index.failures(_MAX_REASONS)
    if all(failure.stage == "row" for failure in failures):
        first = {failure.reason: failure for failure in reversed(failures)}
        reasons = [f"{first[reason].source}:{first[reason].line}: {reason}" for reason in reversed(first)]
        raise ConfigError([*reasons, f"none of the {index.num_rows:,} rows of {name} can be used"])
