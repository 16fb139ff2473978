"""Tells users of a model that recommends sampling that their run is greedy."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindbatch.decoding.model_defaults import FILE_NAME, model_defaults
from mindbatch.decoding.params import DecodingParams
from mindbatch.io.errors import ConfigError


def sampling_advice(folder: Path, explicit: Mapping[str, Any]) -> str | None:
    """A line if the model's file recommends sampling and the given parameters are plain greedy decoding."""
    try:
        params, (values, _) = DecodingParams(**explicit), model_defaults(folder, {}, DecodingParams)
    except ConfigError:  # others say what is wrong with either
        return None
    if DecodingParams(**values).greedy:
        return None
    from mindbatch.decoding.registry import strategy_name  # NumPy; few models recommend sampling

    if strategy_name(params) != "greedy":
        return None
    shown = ", ".join(f"{name}={json.dumps(value)}" for name, value in values.items())
    return (
        f"note: this model's {FILE_NAME} recommends sampling ({shown}), and this run is greedy; "
        "decoding=model_defaults takes what it says, decoding.do_sample=false says that greedy is meant"
    )
