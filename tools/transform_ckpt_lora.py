"""Merges the LoRA matrices of a MindFormers training into its base weights, cut for another strategy.

    python tools/transform_ckpt_lora.py --src_ckpt_strategy STRATEGY --dst_ckpt_strategy STRATEGY \\
        --src_ckpt_path_or_dir CHECKPOINT --dst_ckpt_dir NEW_FOLDER [--lora_scaling 2]

CHECKPOINT is a file with base weights and matrices side by side, or a folder of rank_N/*.ckpt (.safetensors).
For one rank NEW_FOLDER/merged_lora.ckpt is made, for several NEW_FOLDER/rank_N/{prefix}N.ckpt, all at once or
not at all; killed, the same command goes on. Each tensor is merged in float32 and rounded once. It needs
Python, NumPy and regex, neither MindSpore nor a device.

What differs from MindFormers' tool: all ranks are merged, not the first alone; the scaling is lora_alpha / r
of adapter_config.json beside the checkpoint, and without one --lora_scaling must be given; matrices without
their other half or without effect are refused; nothing is written over, nor into the folder of strategies.

An adapter in a folder of its own, with adapter_config.json and adapter_model.safetensors or .ckpt, is merged
by `mindbatch reshard source=... target.dir=... lora.merge=ADAPTER`.
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
    """Makes the files and prints their folder; returns the exit code: see docs/generate.md."""
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
        say("interrupted; the same command goes on", name=NAME)
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
    """MindFormers' flags."""
    result = ToolParser.of_page(NAME, __doc__)
    for name in ("src_ckpt_strategy", "dst_ckpt_strategy"):
        result.add_argument(f"--{name}", default="", help="file, folder, or None for one that is not cut")
    result.add_argument("--src_ckpt_path_or_dir", default="", help="file, or folder of rank folders")
    result.add_argument("--dst_ckpt_dir", default="", help="folder to make")
    result.add_argument("--prefix", default="checkpoint_", help="of the files' names (default: %(default)s)")
    result.add_argument("--lora_scaling", type=float, help="lora_alpha / r; what adapter_config.json says")
    result.add_argument(
        "--save_format",
        default=CKPT.name,
        choices=sorted(WRITTEN),
        help="of the files (default: %(default)s)",
    )
    return result


def read_target(options: argparse.Namespace) -> Path:
    """The folder to make. Raises ConfigError with every error in the flags."""
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
        errors.append(f"--prefix {prefix!a}: must be the beginning of a file's name")
    if scaling is not None and not 0 < abs(scaling) < 1e9:
        errors.append(f"--lora_scaling {scaling:g}: must be a number other than 0")
    target = Path(options.dst_ckpt_dir).resolve()
    if options.dst_ckpt_dir and target.exists() and not (target.is_dir() and not any(target.iterdir())):
        errors.append(f"--dst_ckpt_dir {target}: already exists; give another folder")
    if errors:
        raise ConfigError(errors)
    return target


def strategy_path(text: str) -> Path | None:
    """Empty and None mean a checkpoint that is not cut."""
    return None if text in ("", "None") else Path(text)


if __name__ == "__main__":
    run_tool(main, NAME)
