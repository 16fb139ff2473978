"""Opening the result and error files of a run in the format asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import BinaryIO, cast

from mindbatch.dataset.rows import RowFailure
from mindbatch.io.storage import Storage, WholeFile
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.run.outputs.csv_table import CsvTable
from mindbatch.run.outputs.jsonl import JsonLines, error_lines, result_lines
from mindbatch.run.outputs.openai_response import refusal_lines, response_lines
from mindbatch.run.outputs.rows import FinishedRow, OutputOptions, RowWriter


class Outputs:
    """Takes the rows of a run in the order in which they are to stand."""

    def __init__(self, results: RowWriter, errors: JsonLines) -> None:
        self._results = results
        self._errors = errors

    def add(self, row: FinishedRow) -> None:
        """Takes a row with a result."""
        self._results.add(row)

    def add_error(self, row: RowFailure) -> None:
        """Takes a row without one."""
        self._errors.add(row)

    def close(self) -> None:
        """Ends both files; `open_outputs` does it."""
        self._results.finish()
        self._errors.finish()


@contextmanager
def open_outputs(
    format: str,
    folder: RunFolder,
    options: OutputOptions,
    storage: Storage | None = None,
    kinds: Mapping[str, set[type]] | None = None,
) -> Iterator[Outputs]:
    """The outputs of a run: `format` is jsonl, parquet, csv or openai; errors are JSON lines in each of them.

    kinds: the types of the values of each column of the data that is written, which Parquet needs to know.

    At the end of the `with` both files take the place of older ones, the errors first; an exception within
    leaves the older ones as they were. The error file is written even if it is empty: an older one would tell
    of errors that are gone.

    Raises:
        StorageError: a file cannot be written.
    """
    with (
        WholeFile(folder.results(format), storage) as result_file,
        WholeFile(folder.errors, storage) as error_file,
    ):
        results = _result_writer(format, cast(BinaryIO, result_file), options, kinds)
        errors = cast(BinaryIO, error_file)
        outputs = Outputs(
            results, refusal_lines(errors, options) if format == "openai" else error_lines(errors)
        )
        yield outputs
        outputs.close()


def _result_writer(
    format: str, file: BinaryIO, options: OutputOptions, kinds: Mapping[str, set[type]] | None
) -> RowWriter:
    if format == "parquet":
        from mindbatch.run.outputs.parquet import ParquetTable  # pyarrow takes long to import

        return ParquetTable(file, options, kinds)
    writers: dict[str, Callable[[BinaryIO, OutputOptions], RowWriter]] = {
        "jsonl": result_lines,
        "csv": CsvTable,
        "openai": response_lines,
    }
    return writers[format](file, options)
