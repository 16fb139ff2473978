"""Merges the LoRA matrices of a MindFormers training into its base weights, and reshards them.

    python tools/transform_ckpt_lora.py --src_ckpt_strategy STRATEGY --dst_ckpt_strategy STRATEGY \\
        --src_ckpt_path_or_dir CHECKPOINT --dst_ckpt_dir NEW_FOLDER [--lora_scaling 2]

CHECKPOINT is a file with base weights and matrices, or a folder of rank_N/*.ckpt (.safetensors). For one rank
it writes NEW_FOLDER/merged_lora.ckpt, for several NEW_FOLDER/rank_N/{prefix}N.ckpt, atomically; the same
command resumes after a kill. Each tensor is merged in float32 and rounded once. Python, NumPy and regex are
needed, but neither MindSpore nor a device.

Differences from MindFormers' tool: all ranks are merged, not only the first; the scaling is lora_alpha / r of
adapter_config.json in the checkpoint's folder, and without that file --lora_scaling is required; incomplete
pairs of matrices and pairs without effect are errors; no files are overwritten or written to the folder of
strategies.

Use `mindbatch reshard source=... target.dir=... lora.merge=ADAPTER` for an adapter in a folder of its own,
with adapter_config.json and adapter_model.safetensors or .ckpt.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pipeline"))  # installed or not

from mindbatch.checkpoint.formats.ckpt import CKPT
from mindbatch.checkpoint.formats.registry import WRITTEN
from mindbatch.checkpoint.reshard.execution import execute_plan, worker_count
from mindbatch.checkpoint.reshard.progress import PlainProgress
from mindbatch.checkpoint.transform import open_transform, plan_transform
from mindbatch.checkpoint.transform_lora import plan_beside
from mindbatch.io.errors import EXIT_DONE, EXIT_INTERRUPTED, ConfigError, MindBatchError
from mindbatch.io.screen_text import printable, run_tool, say, show
from mindbatch.io.tool_parser import ToolParser

NAME = "transform_ckpt_lora.py"


def main(arguments: list[str] | None = None) -> int:
    """Makes the files, prints their folder, and returns the exit code (docs/generate.md)."""
    options = parser().parse_args(arguments)
    try:
        target = read_target(options)
        transform = open_transform(
            Path(options.src_ckpt_path_or_dir),
            strategy_path(options.src_ckpt_strategy),
            strategy_path(options.dst_ckpt_strategy),
        )
        with transform.source:
            lora = plan_beside(transform, options.lora_scaling)
            plan = plan_transform(transform, target, options.prefix, kind=options.save_format, lora=lora)
            workers = worker_count(None, plan.nbytes)
            outcome = execute_plan(replace(plan, workers=workers), progress=PlainProgress(NAME))
    except MindBatchError as error:
        say(*error.lines, name=NAME)
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted; the same command resumes", name=NAME)
        return EXIT_INTERRUPTED
    say(*transform.notes, *outcome.notes, name=NAME)
    ranks = "1 rank" if transform.num_ranks == 1 else f"{transform.num_ranks} ranks"
    show(
        printable(
            f"Merge succeed: {len(lora.modules)} weights, scaling {lora.scaling:g}, {ranks} in {target}"
        )
    )
    return EXIT_DONE


def parser() -> argparse.ArgumentParser:
    """Makes the parser of MindFormers' flags."""
    result = ToolParser.of_page(NAME, __doc__)
    for name in ("src_ckpt_strategy", "dst_ckpt_strategy"):
        result.add_argument(f"--{name}", default="", help="file, folder, or None for an unsharded one")
    result.add_argument("--src_ckpt_path_or_dir", default="", help="file, or folder of rank folders")
    result.add_argument("--dst_ckpt_dir", default="", help="folder to make")
    result.add_argument(
        "--prefix", default="checkpoint_", help="start of the files' names (default: %(default)s)"
    )
    result.add_argument("--lora_scaling", type=float, help="lora_alpha / r; default: of adapter_config.json")
    result.add_argument(
        "--save_format",
        default=CKPT.name,
        choices=sorted(WRITTEN),
        help="format of the files (default: %(default)s)",
    )
    return result


def read_target(options: argparse.Namespace) -> Path:
    """Checks the flags and returns the new folder. Raises ConfigError with all errors in the flags."""
    errors = [
        f"--{name} must be given"
        for name in ("src_ckpt_path_or_dir", "dst_ckpt_dir")
        if not getattr(options, name)
    ]
    for name in ("src_ckpt_strategy", "dst_ckpt_strategy"):
        path = strategy_path(getattr(options, name))
        if path is not None and not path.exists():
            errors.append(f"--{name} {path}: no such file or folder")
    prefix, scaling = options.prefix, options.lora_scaling
    if not prefix or "/" in prefix or "\0" in prefix or prefix.startswith("."):
        errors.append(f"--prefix {prefix!a}: must be the start of a file's name")
    if scaling is not None and not 0 < abs(scaling) < 1e9:
        errors.append(f"--lora_scaling {scaling:g}: must be a number other than 0")
    target = Path(options.dst_ckpt_dir).resolve()
    if options.dst_ckpt_dir and target.exists() and not (target.is_dir() and not any(target.iterdir())):
        errors.append(f"--dst_ckpt_dir {target}: already exists; use another folder")
    if errors:
        raise ConfigError(errors)
    return target


def strategy_path(text: str) -> Path | None:
    """Converts a flag to a path; empty and None mean an unsharded checkpoint."""
    return None if text in ("", "None") else Path(text)


if __name__ == "__main__":
    run_tool(main, NAME)
