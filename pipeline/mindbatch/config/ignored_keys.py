"""The key that lists what may be passed over in config.json, which several tasks have."""

from collections.abc import Iterator
from typing import Any

from mindbatch.config.faults import shown

KEY_LIST = "list of keys"


def ignored_faults(name: str, keys: Any) -> Iterator[str]:
    """Faults of what is to be the list of ignored keys of config.json."""
    if not isinstance(keys, list | tuple) or not all(isinstance(key, str) and key for key in keys):
        yield f"{name}={shown(keys)}: must be a list of keys of config.json"
