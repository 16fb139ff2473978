"""The decoding parameters that a model folder's generation_config.json recommends."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindbatch.decoding.parameter import parameters_of, requested_strategies
from mindbatch.io.errors import ConfigError
from mindbatch.io.file_signatures import foreign_format
from mindbatch.io.regular_file import read_regular
from mindbatch.io.strict_json import JsonError, StrictReader, parts_error

FILE_NAME = "generation_config.json"
_MAX_BYTES = 1 << 20
_READER = StrictReader(max_depth=32)
_SILENT = re.compile(
    r"_.*|transformers_version|use_cache|.*cache.*|return_.*|output_.*|.*assistant.*|assistant_.*|"
    r"(bos|pad|eos|decoder_start)_token_id|is_.*|prompt_lookup_num_tokens|max_matching_ngram_size"
)
"""Names of values that describe the file, or have no part in choosing tokens here."""
_NAMED = re.compile(r"decoding\.(\w+)=")


def recommended(folder: Path) -> dict[str, Any]:
    """Returns the content of the file without nulls.

    ConfigError where it is missing, or holds no JSON object, read as strictly as config.json is.
    """
    path = folder / FILE_NAME
    try:
        data = read_regular(path, _MAX_BYTES)
        if problem := foreign_format(data) or parts_error(data):
            raise JsonError(problem)
        content = _READER.parse(data)
    except FileNotFoundError:
        raise ConfigError(f"{path}: not there, so the model has no decoding parameters of its own") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:  # JsonError; or a path that can be none
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must be a JSON object")
    return {name: value for name, value in content.items() if value is not None}


def model_defaults(
    folder: Path, overrides: Mapping[str, Any], params: type
) -> tuple[dict[str, Any], list[str]]:
    """Returns the model's values of parameters that `overrides` leaves open, and a line for each one left
    out.

    Left out are keys that are no parameter, and values that are not allowed or have no effect beside the
    others and the overrides. ConfigError as of `recommended`.

    params: DecodingParams, which declares the parameters and refuses what is not allowed.
    """
    content = recommended(folder)
    # Neither the user's alone, nor set for the model elsewhere, as speculation and end tokens are.
    recommendable = {name for name, declared in parameters_of(params).items() if declared.of_model}
    notes = [
        f"{folder / FILE_NAME}: {name} has no effect here"
        for name in content
        if name not in recommendable and not _SILENT.fullmatch(name)
    ]
    # A text is no value of any of them but one, and ${...} would be replaced in a configuration.
    taken = {
        name: value
        for name, value in content.items()
        if name in recommendable and name not in overrides and "${" not in json.dumps(value)
    }
    while True:
        try:
            params(**{**overrides, **taken})
            return taken, notes
        except ConfigError as error:
            named = [(name, problem) for problem in error.lines for name in _NAMED.findall(problem)]
        own = [(name, problem) for name, problem in named if name in taken]
        if not own:  # what is given is at problem by itself, which others report
            return taken, notes
        name, problem = own[0]
        del taken[name]
        notes.append(f"{folder / FILE_NAME}: left out: {problem}")


def sampling_advice(folder: Path, explicit: Mapping[str, Any], params: type) -> str | None:
    """Returns a line if the model's file recommends sampling and `explicit` is plain greedy
    decoding.

    params: as of `model_defaults`.
    """
    try:
        explicit_params, (values, _) = params(**explicit), model_defaults(folder, {}, params)
    except ConfigError:  # others say what is wrong with either
        return None
    if (
        params(**values).greedy
        or not explicit_params.greedy
        or requested_strategies(explicit_params, parameters_of(params))
    ):
        return None
    listed = ", ".join(f"{name}={json.dumps(value)}" for name, value in values.items())
    return (
        f"note: this model's {FILE_NAME} recommends sampling ({listed}), and this run is greedy; "
        "decoding=model_defaults takes what it says, decoding.do_sample=false says that greedy is meant"
    )
