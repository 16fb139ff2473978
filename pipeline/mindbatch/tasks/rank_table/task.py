"""`mindbatch rank-table`: writes the table of one server or several, checks tables, merges them."""

from __future__ import annotations

from pathlib import Path

from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED, ConfigError
from mindbatch.io.screen_text import printable, say, show, show_json
from mindbatch.launch.rank_table import RankTable, counted, table_rows
from mindbatch.launch.table_files import CheckedFile, check_files, merge_files, name_for_servers, write_table
from mindbatch.launch.table_reader import Leave, RankTableError
from mindbatch.tasks.rank_table.schema import RankTableConfig
from mindbatch.tasks.rank_table.sources import assemble


def run(config: RankTableConfig) -> int:
    """Runs the task; `check` fails when a table has a fault."""
    if config.action == "check":
        return _check(config)
    return _merge(config) if config.action == "merge" else _write(config)


def _write(config: RankTableConfig) -> int:
    table, name, notes = assemble(config)
    say(*notes)
    return _save(config, table, name)


def _merge(config: RankTableConfig) -> int:
    table, notes = merge_files([*map(Path, config.files)], Leave(uneven=config.uneven))
    say(*notes)
    return _save(config, table, name_for_servers(table))


def _save(config: RankTableConfig, table: RankTable, name: str) -> int:
    if config.num_ranks not in (None, table.num_ranks):
        raise RankTableError(f"the table would have {table.num_ranks} ranks; num_ranks={config.num_ranks}")
    path = Path(config.output.file or name)
    try:
        is_new = write_table(table, path, config.output.replace)
    except FileExistsError:
        raise ConfigError(
            f"output.file={path}: holds something else; output.replace=true writes over it"
        ) from None
    if config.output.format == "json":
        show_json({"file": str(path), "table": table.to_json()})
    else:
        show("\n".join([*table_rows(table), _verdict(path, table, is_new)]))
    return EXIT_DONE


def _verdict(path: Path, table: RankTable, is_new: bool) -> str:
    done = "written" if is_new else "was there already, with the same content"
    return f"{printable(str(path))}: {done}: version {table.version}, {counted(table)}"


def _check(config: RankTableConfig) -> int:
    checked = check_files([*map(Path, config.files)], config.num_ranks, Leave(uneven=config.uneven))
    is_correct = all(each.is_correct for each in checked)
    if config.output.format == "json":
        files = [_as_json(each) for each in checked]
        show_json({"is_correct": is_correct, "files": files})
    else:
        show("\n".join(line for each in checked for line in _as_text(each)))
    return EXIT_DONE if is_correct else EXIT_FAILED


def _as_json(checked: CheckedFile) -> dict[str, object]:
    table = checked.table
    return {
        "file": checked.name,
        "is_correct": checked.is_correct,
        "version": table.version if table else None,
        "servers": len(table.servers) if table else None,
        "ranks": table.num_ranks if table else None,
        "faults": checked.faults,
        "notes": checked.notes,
    }


def _as_text(checked: CheckedFile) -> list[str]:
    """A line for each fault and note, all with the file's name, as a compiler has them."""
    name = printable(checked.name)
    lines = [f"{name}: {printable(fault)}" for fault in checked.faults]
    if checked.is_correct and checked.table:
        lines.append(f"{name}: correct: version {checked.table.version}, {counted(checked.table)}")
    return [*lines, *(f"{name}: note: {printable(note)}" for note in checked.notes)]
