r"""Generates text with the flags of MindFormers' generate_custom.py, by way of `mindbatch generate`.

    python tools/generate_custom.py --model_type llama --checkpoint_path FOLDER --input_data "Once" --top_k 3
    python tools/generate_custom.py --model_type tiny_gpt2 --input_data prompts.txt --do_sample False
    python tools/generate_custom.py --model_type llama --checkpoint_path FOLDER --use_parallel True \
        --model_parallel 2 --input_data prompts.txt launch.log_dir=logs

--model_type is a shipped model, a folder with config.json and tokenizer, or a name that starts with the type
of the model in --checkpoint_path: llama2_7b. --checkpoint_path is a Hugging Face folder, also with the
folders rank_N of `mindbatch reshard`. A file as --input_data has a prompt on each line, in which \n is a line
break. Arguments KEY=VALUE are keys of `mindbatch generate`, such as runtime=ascend.

Differences from MindFormers' script: temperature and repetition_penalty have an effect; --data_parallel
allows any number of prompts; with --use_parallel True the script is run once and starts the processes itself.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pipeline"))  # installed or not

from mindbatch.config.paths import configs_folder
from mindbatch.io.error_lines import shown, text_override, texts_override
from mindbatch.io.errors import EXIT_USAGE, ConfigError
from mindbatch.io.regular_file import open_regular
from mindbatch.io.screen_text import run_tool, say
from mindbatch.io.storage import reason_of
from mindbatch.io.tool_parser import ToolParser
from mindbatch.model_spec.registry import MODEL_TYPES
from mindbatch.prompts.prompt_lines import text_lines

NAME = "generate_custom.py"
ON_ASCEND = {"runtime=ascend", "runtime.device_target=Ascend"}
TRUE, FALSE = ("true", "yes", "y", "on", "1"), ("false", "no", "n", "off", "0")
SAMPLING = {"top_k": 3, "top_p": 1.0, "temperature": 1.0}
LINE_BREAK = r"\n"
ENDINGS = (".txt", ".jsonl")
"""Suffixes of words that are missing files, not prompts."""
PLACEHOLDER = texts_override("prompts", ["a prompt"])


def main() -> None:
    """Translates the flags and runs `mindbatch generate` in this process, which ends with it."""
    options, errors = parser().parse_with_errors()
    if errors:  # a word behind an unknown flag may be its value
        options.overrides = [word for word in options.overrides if "=" in word]
    overrides = [*_model(options, errors), *_prompts(options, errors), *_decoding(options)]
    overrides += [*_ranks(options, errors), *options.overrides]
    _choose_device(options, errors)
    if errors:
        say(*errors, *_further_errors(overrides), name=NAME)
        sys.exit(EXIT_USAGE)
    sys.argv[1:] = ["generate", *overrides]
    from mindbatch.cli import entry_point  # after errors, to report them quickly

    entry_point()


def parser() -> argparse.ArgumentParser:
    """Makes the parser of MindFormers' flags and of KEY=VALUE arguments."""
    result = ToolParser.of_page(NAME, __doc__)
    add = result.add_argument
    add("--model_type", help="shipped model, folder, or name of the model's type")
    add("--checkpoint_path", help="Hugging Face folder")
    add("--use_parallel", type=_truth, default=False, help="start processes that share the work")
    add("--device_id", type=int, default=0, help="NPU of a run in one process")
    add("--data_parallel", type=int, default=1, help="copies of the model")
    add("--model_parallel", type=int, default=1, help="slices of every layer")
    add("--batch_size", type=int, default=1, help="largest number of sequences in one step")
    add("--seq_length", type=int, help="longest prompt + output, in tokens; the model's own")
    add("--use_past", type=_truth, default=True, help="keep keys and values of past tokens")
    add("--input_data", help="a prompt, or a file with one on each line; --input_data=-TEXT starts with -")
    add("--max_new_tokens", type=int, default=128, help="maximum of tokens to generate; %(default)s")
    add("--do_sample", type=_truth, default=True, help="sample tokens; %(default)s")
    add("--top_k", type=int, help="sample from the k most likely tokens; 3")
    add("--top_p", type=float, help="sample from the smallest set with this probability; 1.0")
    add("--temperature", type=float, help="divisor of the logits; 1.0")
    add("--repetition_penalty", type=float, default=1.0, help="penalty of repeated tokens; %(default)s")
    add("overrides", nargs="*", metavar="KEY=VALUE", help="keys of mindbatch generate")
    return result


def _truth(text: str) -> bool:
    if text.lower() not in TRUE + FALSE:
        raise argparse.ArgumentTypeError("must be True or False")
    return text.lower() in TRUE


def _further_errors(overrides: list[str]) -> Sequence[str]:
    """Returns errors of the other settings in `mindbatch generate`, to report all of them together."""
    from mindbatch.config.compose import compose_task
    from mindbatch.tasks.registry import TASKS

    try:
        compose_task(TASKS["generate"], overrides).finish()
    except ConfigError as error:
        return error.lines
    return ()


def _model(options: argparse.Namespace, errors: list[str]) -> Iterator[str]:
    """Yields the settings of model, tokenizer, batch size and lengths."""
    name, path = options.model_type, options.checkpoint_path
    if name is None:
        errors.append("--model_type must be given: a shipped model, a folder, or a name like llama2_7b")
        yield "model=tiny_gpt2" if path is None else text_override("model.checkpoint_name_or_path", path)
    elif os.path.isdir(name):
        yield text_override("model.checkpoint_name_or_path", path or name)
        if path is not None:
            yield text_override("model.tokenizer", name)
    elif name.isidentifier() and (configs_folder() / f"model/{name}.yaml").is_file():
        yield f"model={name}"
        if path is not None:
            yield text_override("model.checkpoint_name_or_path", path)
    else:
        yield from _named_type(name, path, errors)
    yield f"model.batch_size={options.batch_size}"
    yield f"model.use_past={str(options.use_past).lower()}"
    if options.seq_length is not None:
        yield f"model.seq_length={options.seq_length}"


def _named_type(name: str, path: str | None, errors: list[str]) -> Iterator[str]:
    """Finds the longest model type with which the name starts; MindFormers' names continue with the size."""
    known = max(
        (model_type for model_type in MODEL_TYPES if name.startswith(model_type)), key=len, default=None
    )
    if known is None:
        types = ", ".join(MODEL_TYPES)
        errors.append(f"--model_type {shown(name)}: not a folder, and does not start with one of {types}")
    elif path is None:
        errors.append(f"--checkpoint_path must be given: the folder of the {known} model")
    if known is None or path is None:
        yield "model=tiny_gpt2" if path is None else text_override("model.checkpoint_name_or_path", path)
    else:
        yield f"model.type={known}"
        yield text_override("model.checkpoint_name_or_path", path)


def _prompts(options: argparse.Namespace, errors: list[str]) -> Iterator[str]:
    data = options.input_data
    if data is None:
        errors.append("--input_data must be given: a prompt, or a file with one on each line")
    elif os.path.isfile(data):
        lines = _broken_lines(Path(data), errors)
        yield text_override("prompts_file", data) if lines is None else texts_override("prompts", lines)
        return
    elif data.endswith(ENDINGS) and len(data.split()) == 1:
        errors.append(f"--input_data {shown(data)}: no such file")
    yield PLACEHOLDER if data is None else texts_override("prompts", [data])


def _broken_lines(path: Path, errors: list[str]) -> list[str] | None:
    r"""Reads the prompts of a file with \n for line breaks; returns None if there is none in the file."""
    try:
        with open(open_regular(path), "rb") as file:
            if not any(LINE_BREAK.encode() in line for line in file):
                return None
            file.seek(0)
            lines = [*text_lines(file)]
    except OSError as error:
        errors.append(f"--input_data {path}: cannot be read ({reason_of(error)})")
        return None
    errors += [f"{path}, line {line.number}: {line.error}" for line in lines if line.text is None]
    return [line.text.replace(LINE_BREAK, "\n") for line in lines if line.text is not None]


def _decoding(options: argparse.Namespace) -> Iterator[str]:
    """Yields decoding settings; sampling options without do_sample are refused by `mindbatch generate`."""
    yield f"decoding.max_new_tokens={options.max_new_tokens}"
    yield f"decoding.do_sample={str(options.do_sample).lower()}"
    yield f"decoding.repetition_penalty={options.repetition_penalty}"
    for name, default in SAMPLING.items():
        value = getattr(options, name)
        if value is not None or options.do_sample:
            yield f"decoding.{name}={default if value is None else value}"


def _ranks(options: argparse.Namespace, errors: list[str]) -> Iterator[str]:
    for name in ("data_parallel", "model_parallel"):
        number = getattr(options, name)
        if number > 1 and not options.use_parallel:
            errors.append(f"--{name} {number}: has no effect without --use_parallel True")
        yield f"parallel.{name}={number}"


def _choose_device(options: argparse.Namespace, errors: list[str]) -> None:
    """Sets DEVICE_ID, from which MindSpore reads the number of the NPU."""
    number = options.device_id
    flag = f"--device_id {number}"
    if number < 0:
        errors.append(f"{flag}: must not be negative")
    elif number and options.use_parallel:
        errors.append(
            f"{flag}: has no effect with --use_parallel True, where each process has its own device"
        )
    elif number and not ON_ASCEND & {*options.overrides}:
        errors.append(f"{flag}: CPUs are not numbered; use runtime=ascend for an NPU")
    elif number:
        os.environ["DEVICE_ID"] = str(number)


if __name__ == "__main__":
    run_tool(main, NAME)
