"""Keys that describe the model: compared with config.json of its folder, which is what counts here."""

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from mindbatch.config.faults import shown
from mindbatch.config.paths import resolve_path
from mindbatch.config.predict_yaml.entries import Agreed, Same, Unfit, WithoutEffect
from mindbatch.hub.cache import cached_model
from mindbatch.io.regular_file import first_bytes
from mindbatch.io.strict_json import JsonFault, StrictReader
from mindbatch.models.config_forms import older_form
from mindbatch.models.registry import newer_names

LARGEST_CONFIG = 1 << 20
IN_CONFIG = "config.json of the model's folder says it"
_READER = StrictReader(max_depth=32)


def folder_config(folder: object) -> Mapping[str, Any] | None:
    """config.json of a model's folder, or of one in the hub's local cache; None where it cannot be read.

    What is wrong with it is reported when the model is read.
    """
    if not isinstance(folder, str) or not folder:
        return None
    try:
        path = resolve_path(folder)
        path = path if path.exists() else cached_model(folder) or path
        content = _READER.parse(first_bytes(path / "config.json", LARGEST_CONFIG).decode())
    except (OSError, ValueError, JsonFault):
        return None
    if not isinstance(content, dict):
        return None
    return older_form(content, newer_names(content.get("model_type"))).content


def check_same(entry: Same, value: Any, config: Mapping[str, Any] | None) -> NoReturn:
    """Raises Agreed where config.json says the same, Unfit where not, WithoutEffect where it is not there."""
    if config is None:
        raise WithoutEffect(IN_CONFIG)
    name = next((name for name in entry.names if config.get(name) is not None), None)
    if name is None:
        if any(_is_same(value, neutral) for neutral in entry.neutral):
            raise Agreed
        if entry.by_weights:
            raise WithoutEffect("the weights say it")
        raise Unfit("config.json of the model's folder does not say it, and that counts; remove it")
    if _is_same(value, config[name]) or config[name] in entry.alike.get(str(value), ()):
        raise Agreed
    raise Unfit(
        f"config.json of the model's folder says {name}={shown(config[name])}, and that counts; remove it"
    )


def _is_same(one: Any, other: Any) -> bool:
    """Equal; a number is also one where YAML has a text, as 1e-5 is."""
    try:
        return math.isclose(float(one), float(other), rel_tol=1e-6)
    except (TypeError, ValueError, OverflowError):
        return bool(one == other)
