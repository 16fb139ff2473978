"""Rows that are a line each: JSON lines and plain text."""

from collections.abc import Iterator

from mindbatch.dataset.byte_streams import opened
from mindbatch.dataset.data_files import DataFile
from mindbatch.dataset.records import Record
from mindbatch.io.strict_json import JsonFault
from mindbatch.prompts.json_rows import parse_row
from mindbatch.prompts.prompt_lines import text_lines

TEXT_COLUMN = "prompt"


def json_line_rows(file: DataFile, max_line_bytes: int) -> Iterator[Record]:
    """A row from each line, which must hold a JSON object."""
    name = file.name
    with opened(file) as stream:
        for line in text_lines(stream, max_line_bytes):
            if line.text is None:
                yield Record(name, line.number, None, line.fault)
                continue
            try:
                columns = parse_row(line.text)
            except JsonFault as fault:
                yield Record(name, line.number, None, str(fault))
            else:
                yield Record(name, line.number, columns)


def text_rows(file: DataFile, max_line_bytes: int) -> Iterator[Record]:
    """A row from each line, whose text is its one column: the prompt."""
    with opened(file) as stream:
        for line in text_lines(stream, max_line_bytes):
            columns = None if line.text is None else {TEXT_COLUMN: line.text}
            yield Record(file.name, line.number, columns, line.fault)
