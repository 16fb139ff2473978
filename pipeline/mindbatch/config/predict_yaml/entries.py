"""Entries of the table of predict YAML keys; what conversions are given and may raise."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

NOTHING: tuple[Any, ...] = (None, "", "None", False)
"""Values that ask for nothing."""

CPU = "CPU"


@dataclass(frozen=True)
class Facts:
    """Context of a conversion besides the value."""

    values: Mapping[str, Any]
    """Values of the YAML, by dotted key."""

    above: Mapping[str, Any]
    """Values by our key that go before the YAML's: of the command line, --config and chosen options."""

    device: str
    """runtime.device_target of the result."""

    strategy: str = ""
    """Setting given for how tokens are chosen, `decoding=top_p` for one; empty: the YAML says how."""

    model_config: Mapping[str, Any] | None = None
    """config.json of the model's folder; None where it is not there."""

    adapter: str | None = None
    """load_checkpoint, where that is a LoRA adapter (pet_config) of the model in pretrained_model_dir."""

    is_mcore: bool = False
    """True if the YAML is of the newer form (`use_legacy: False`)."""

    def value(self, *keys: str) -> Any:
        """The value of the first of the keys that asks for something, or None."""
        values = (self.values[key] for key in keys if self.values.get(key) not in NOTHING)
        return next(values, None)


class WithoutEffect(Exception):
    """Raised where a key's value has no effect here, with the reason in a few words."""


class Agreed(Exception):
    """A key says what is so anyway, or asks for nothing: there is nothing to report."""


class Unfit(Exception):
    """Raised where a key's value is refused, with the reason and what to do."""


@dataclass(frozen=True)
class InPlaceOf:
    """Returned by a conversion that sets another key than the entry's."""

    key: str
    value: Any


Conversion = Callable[[Any, Facts], Any]
"""From the YAML's value to that of our key. Raises Agreed, WithoutEffect or Unfit."""

Check = Callable[[Any, Facts], NoReturn]
"""Raises Agreed, WithoutEffect or Unfit."""


def as_it_is(value: Any, facts: Facts) -> Any:
    """The value; one that asks for nothing leaves our key alone."""
    if value is None or value == "None":
        raise Agreed
    return value


@dataclass(frozen=True)
class Sets:
    ours: str
    convert: Conversion = as_it_is
    absent: str = "the task has no such key"
    """Why it has no effect for a task without the key."""


@dataclass(frozen=True)
class Checked:
    """Sets nothing; the check says what becomes of it."""

    check: Check


Entry = Sets | Checked
