"""Reshards a checkpoint from one MindSpore strategy to another, with the flags of MindFormers' tools.

    python tools/transform_ckpt.py --src_ckpt_strategy SRC_STRATEGY --dst_ckpt_strategy DST_STRATEGY \\
        --src_ckpt_dir CHECKPOINT --dst_ckpt_dir NEW_FOLDER
    python tools/transform_ckpt.py --src_checkpoint CHECKPOINT --dst_checkpoint_dir FOLDER --dst_strategy FILE

CHECKPOINT has rank_N/*.ckpt or *.safetensors, or is one file. A strategy is a file, a folder with the files
of all stages, or empty or None for an unsharded checkpoint. NEW_FOLDER/rank_N/{prefix}N.ckpt are written
atomically; the same command resumes after a kill. With the second kind of flags the folder is FOLDER/NAME,
with the name of CHECKPOINT. Python and NumPy are needed, but neither MindSpore nor a device.

Differences from MindFormers' tools: no files are overwritten or written to the folder of strategies;
--transform_process_num is the number of threads, and the process of --rank_id 0 makes all ranks.
"""

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pipeline"))  # installed or not

from mindbatch.checkpoint.reshard.execution import execute_plan, worker_count
from mindbatch.checkpoint.reshard.progress import PlainProgress
from mindbatch.checkpoint.transform import open_transform, plan_transform
from mindbatch.io.errors import EXIT_DONE, EXIT_INTERRUPTED, ConfigError, MindBatchError
from mindbatch.io.screen_text import printable, run_tool, say, show
from mindbatch.io.tool_parser import ToolParser

NAME = "transform_ckpt.py"
# The two kinds of MindFormers' flags: source, target, strategy of the source, strategy of the target.
PLAIN = ("src_ckpt_dir", "dst_ckpt_dir", "src_ckpt_strategy", "dst_ckpt_strategy")
NAMED = ("src_checkpoint", "dst_checkpoint_dir", "src_strategy", "dst_strategy")
MEANINGS = (
    "checkpoint to read",
    "folder to make",
    "strategy of the source: file, folder, or empty",
    "strategy of the target: file, folder, or empty",
)


@dataclass
class Request:
    """The request of the flags."""

    source: Path
    target: Path
    source_strategy: Path | None
    target_strategy: Path | None


def main(arguments: list[str] | None = None) -> int:
    """Makes the files, prints their folder, and returns the exit code (docs/generate.md)."""
    options = parser().parse_args(arguments)
    try:
        request = read_request(options)
        if options.rank_id:
            say(
                f"--rank_id {options.rank_id}: nothing to do; the process of --rank_id 0 makes all ranks",
                name=NAME,
            )
            return EXIT_DONE
        transform = open_transform(request.source, request.source_strategy, request.target_strategy)
        with transform.source:
            check_ranks(options, transform.num_ranks)
            plan = plan_transform(transform, request.target, options.prefix)
            num_threads = options.transform_process_num
            workers = worker_count(None if num_threads == 1 else num_threads, plan.nbytes)
            outcome = execute_plan(replace(plan, workers=workers), progress=PlainProgress(NAME))
    except MindBatchError as error:
        say(*error.lines, name=NAME)
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted; the same command resumes", name=NAME)
        return EXIT_INTERRUPTED
    say(*transform.notes, *outcome.notes, name=NAME)
    state = "Transform succeed" if outcome.is_new else "Already exists"
    ranks = "1 rank" if transform.num_ranks == 1 else f"{transform.num_ranks} ranks"
    show(printable(f"{state}: {ranks} in {request.target}"))
    return EXIT_DONE


def parser() -> argparse.ArgumentParser:
    """Makes the parser of the flags of both tools."""
    result = ToolParser.of_page(NAME, __doc__)
    for names in (PLAIN, NAMED):
        for name, meaning in zip(names, MEANINGS, strict=True):
            result.add_argument(f"--{name}", default="", help=meaning)
    result.add_argument(
        "--prefix", default="checkpoint_", help="start of the files' names (default: %(default)s)"
    )
    result.add_argument("--rank_id", type=int, default=0, help="0, the default, makes the files of all ranks")
    result.add_argument("--world_size", type=int, help="ranks of the target; must match its strategy")
    result.add_argument(
        "--transform_process_num", type=int, default=1, help="number of threads; 1 chooses it automatically"
    )
    result.add_argument("--transform_by_rank", help="has no effect, because memory is always bounded")
    return result


def read_request(options: argparse.Namespace) -> Request:
    """Reads the request. Raises ConfigError with all errors in the flags."""
    errors = list(flag_errors(options))
    is_named = any(getattr(options, name) for name in NAMED)
    names = NAMED if is_named else PLAIN
    if is_named and any(getattr(options, name) for name in PLAIN):
        errors.append(f"--{' --'.join(PLAIN)} and --{' --'.join(NAMED)}: only one kind of flags is allowed")
    source, target, *strategies = (getattr(options, name) for name in names)
    source_strategy, target_strategy = (strategy_path(text) for text in strategies)
    if is_named and not target:
        target = "transformed_checkpoint"
    errors += [
        f"--{name} must be given" for name, text in zip(names, (source, target), strict=False) if not text
    ]
    if source_strategy is None and target_strategy is None:
        errors.append(f"--{names[2]} and --{names[3]}: one of them must be given")
    for name, path in zip(names[2:], (source_strategy, target_strategy), strict=True):
        if path is not None and not path.exists():
            errors.append(f"--{name} {path}: no such file or folder")
    if errors:
        raise ConfigError(errors)
    folder = Path(target) / Path(source).resolve().name.split(".")[0] if is_named else Path(target)
    return Request(Path(source), folder, source_strategy, target_strategy)


def flag_errors(options: argparse.Namespace) -> list[str]:
    """Returns the errors of single flags."""
    errors = []
    if (
        not options.prefix
        or "/" in options.prefix
        or "\0" in options.prefix
        or options.prefix.startswith(".")
    ):
        errors.append(f"--prefix {options.prefix!a}: must be the start of a file's name")
    if options.transform_process_num < 1:
        errors.append(f"--transform_process_num {options.transform_process_num}: must be at least 1")
    if options.rank_id < 0:
        errors.append(f"--rank_id {options.rank_id}: must not be negative")
    return errors


def strategy_path(text: str) -> Path | None:
    """Converts a flag to a path; empty and None mean an unsharded checkpoint."""
    return None if text in ("", "None") else Path(text)


def check_ranks(options: argparse.Namespace, num_ranks: int) -> None:
    """Raises ConfigError if --world_size differs from the strategy's; 1, MindFormers' default, is ignored."""
    if options.world_size not in (None, 1, num_ranks):
        raise ConfigError(
            f"--world_size {options.world_size}: the strategy of the target has {num_ranks} ranks"
        )


if __name__ == "__main__":
    run_tool(main, NAME)
