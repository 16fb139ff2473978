"""Declaration of a decoding parameter: all about it beside its name, its type and its default."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, TypeVar

from mindbatch.decoding.value_kinds import ValueKind
from mindbatch.io import fault_lines
from mindbatch.io.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Need:
    """Condition for a parameter to have an effect.

    met: whether all parameters together fulfil it. missing: the parameter in the way where they do not.
    remedy: what to do then.
    """

    met: Callable[[Any], bool]
    missing: str
    remedy: str


@dataclass(frozen=True)
class Asks:
    """The strategy that a parameter asks for by any value but its default.

    samples: whether it can sample. form_of: the parameter of the strategy that it is a form of; all others
    exclude each other. outputs: the most that it returns, where that is "one" or the parameter's value.
    """

    strategy: str
    samples: bool = True
    form_of: str = ""
    outputs: Literal["any", "one", "value"] = "any"


@dataclass(frozen=True)
class Parameter:
    """Declaration of a parameter.

    default: the value without effect.
    kind: the values allowed.
    meaning: its line in help and in docs/decoding.md.
    needs: what another value than the default, or than `idle`, is at fault without.
    asks: the strategy that it asks for.
    is_filter: whether it narrows what sampling chooses among.
    widens: whether it makes a row take several tokens of a step.
    openai: its names in OpenAI's requests.
    of_model: whether a model's files may recommend a value.
    in_config: whether configurations and data can hold a value.
    accepts: what configurations take, in words, where no plain type says it.
    topic: what heads this parameter and the next ones in help.
    """

    default: Any
    kind: ValueKind
    meaning: str
    needs: tuple[Need, ...] = ()
    idle: Any = None
    asks: Asks | None = None
    is_filter: bool = False
    widens: bool = False
    openai: tuple[str, ...] = ()
    of_model: bool = True
    in_config: bool = True
    accepts: str = ""
    topic: str = ""


def parameter(default: Any, kind: ValueKind, meaning: str, **more: Any) -> Any:
    """A field of `DecodingParams`, of which `Parameter(default, kind, meaning, **more)` is said.

    Any, as `dataclasses.field` has it: the annotation of the class attribute is the type.
    """
    declared = Parameter(default, kind, meaning, **more)
    return dataclasses.field(default=default, metadata={"parameter": declared})


def parameters_of(declared: type) -> dict[str, Parameter]:
    """By name, what is said of each field of the dataclass `declared`."""
    return {field.name: field.metadata["parameter"] for field in dataclasses.fields(declared)}


def other_names(parameters: Mapping[str, Parameter]) -> dict[str, str]:
    """By OpenAI's name of a parameter, its own where that is another."""
    pairs = ((other, name) for name, declared in parameters.items() for other in declared.openai)
    return {other: name for other, name in pairs if other not in parameters}


def with_other_names(declared: type[T]) -> type[T]:
    """The dataclass of parameters, made with OpenAI's names, too; ConfigError: one is given under two."""
    names, init = other_names(parameters_of(declared)), declared.__init__

    @wraps(init)
    def with_names(self: T, **arguments: Any) -> None:
        own, twice = fault_lines.under_own_names(arguments, names)
        if twice:
            raise ConfigError(f"decoding.{line}" for line in twice)
        init(self, **own)

    setattr(declared, "__init__", with_names)  # noqa: B010 - which the type checker would refuse
    return declared


def shown(name: str, value: Any) -> str:
    return f"decoding.{name}={fault_lines.shown(value, fault_lines.LONGEST_PARAMETER)}"
