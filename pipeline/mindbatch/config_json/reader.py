"""Reading config.json: every key is used, known not to matter, or refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TypedDict, TypeGuard

from mindbatch.checkpoint.error_lines import first_lines, shown
from mindbatch.config_json.forms import NO_NAMES, Config, JsonValue, older_form
from mindbatch.io.error_lines import did_you_mean
from mindbatch.io.errors import CheckpointError


class ConfigKeys(TypedDict):
    """The content of config_keys.json, by the name of a type.

    defaults: what its configuration class takes for absent keys. other_names: other names of keys that the
    class takes. without_effect: keys that never change a result, by the reason. computed_anyway: values that
    say what is computed without the key.
    """

    defaults: Mapping[str, Config]
    other_names: Mapping[str, Mapping[str, str]]
    without_effect: Mapping[str, Mapping[str, Sequence[str]]]
    computed_anyway: Mapping[str, Mapping[str, Sequence[JsonValue]]]


@lru_cache(maxsize=1)
def config_keys() -> ConfigKeys:
    """Reads config_keys.json, which tests/makers/make_config_fixtures.py lays out."""
    content: ConfigKeys = json.loads(Path(__file__).with_name("config_keys.json").read_bytes())
    return content


def keys_without_effect(model_type: str) -> set[str]:
    """The keys that change nothing in models of a type; "*": in those of any."""
    return set(chain.from_iterable(config_keys()["without_effect"].get(model_type, {}).values()))


def computed_anyway(model_type: str) -> Mapping[str, Sequence[JsonValue]]:
    """By key of published files, the values that say what models of a type compute without it.

    "=KEY" is the value of another key.
    """
    return config_keys()["computed_anyway"].get(model_type, {})


def without_irrelevant(names: Set[str]) -> Set[str]:
    """The keys that are not known to change nothing."""
    left = names - keys_without_effect("*")
    if left:
        from mindbatch.decoding.params import PARAMETERS  # much to declare, and few files have such keys

        left -= {name for name, declared in PARAMETERS.items() if declared.of_model}
    return left


NEUTRAL: tuple[JsonValue, ...] = (None, False, "", [], {})
# Sizes far above those of every published model (200 layers, 262,144 tokens, 10 million positions): what is
# made of a configuration before the tensors are compared with it takes time and memory in proportion.
MAX_LAYERS = 1 << 10
MAX_VOCABULARY = 1 << 24
MAX_POSITIONS = (1 << 31) - 1  # of 32 bits in the kernels
MAX_WIDTH = 1 << 20
_LARGEST = {
    **dict.fromkeys(("n_layer", "num_decoder_layers", "num_hidden_layers", "num_layers"), MAX_LAYERS),
    **dict.fromkeys(("padded_vocab_size", "vocab_size"), MAX_VOCABULARY),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "seq_length", "sliding_window"), MAX_POSITIONS
    ),
}
_PLAIN = re.compile(r"[\w.-]{1,60}", re.ASCII)
_MAX_COMPARED = 64  # characters of an unknown key: the search takes time in their square
_MAX_IGNORED = 100  # unknown keys that are offered for passing over
# Parts of names of keys that change what a network computes; an error line says so of such a key.
_COMPUTED = re.compile(
    "alibi|attention|attn|bidirectional|causal|expert|gate|group|layer_types|lm_head|mask|moe|norm|position|rope"
    "|rotary|rout|scal|softcap|sparse|tie|topk|window"
)


def is_positive_float32(value: object) -> TypeGuard[float]:
    """True if it is a number that is still above 0, finite and exact to 24 bits as float32."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 2.0**-126 <= value < 2.0**128  # type: ignore[operator]


@dataclass(frozen=True)
class IgnoredKeys:
    """Keys of config.json that the user declares to be without effect.

    setting: where the user says so; empty where nobody can.
    may_lack: they may be keys of another model's file.
    """

    names: tuple[str, ...] = ()
    setting: str = "model.ignore_config_keys"
    may_lack: bool = False


NONE_IGNORED = IgnoredKeys()


class ConfigReader:
    """Takes typed values out of a configuration and gathers every error on the way.

    It is read in one form, whichever release of transformers wrote it (`older_form`; other_keys: see there).
    defaults: what the model's own configuration class takes for a key that is absent. Null means what it
    means there: no for a flag; for a size that cannot be null, an error; for the rest the default.
    """

    def __init__(
        self,
        config: Config,
        source: str = "config.json",
        defaults: Config = MappingProxyType({}),
        ignore: IgnoredKeys = NONE_IGNORED,
        other_keys: Mapping[str, str] = NO_NAMES,
    ) -> None:
        form = older_form(config, other_keys)
        self._config, self._locations = form.content, form.locations
        self._source = source
        self._defaults = defaults
        self._ignore = ignore
        self._seen = form.read
        self.errors: list[str] = []
        for key, value, problem in form.errors:
            location = shown(form.locations.get(key, key))[1:-1]
            self.errors.append(f"{source}: {location}={shown(value)}: {problem}")

    @property
    def read_keys(self) -> frozenset[str]:
        """The keys that were read, or declared not to matter."""
        return frozenset(self._seen)

    def error(self, key: str, problem: str) -> None:
        """Records an error of one key; `problem` says what is allowed."""
        line = f"{self._source}: {self._shown(key)}: {problem}"
        if line not in self.errors:
            self.errors.append(line)

    def within(self, key: str, content: JsonValue) -> ConfigReader:
        """A reader of the settings that a key holds; its errors become this one's."""
        if not isinstance(content, Mapping):
            self.error(key, "must be settings with their keys")
            content = {}
        inner = ConfigReader(content, f"{self._source}: {shown(key)[1:-1]}")
        inner.errors = self.errors
        return inner

    def _shown(self, key: str) -> str:
        return f"{shown(self._locations.get(key, key))[1:-1]}={shown(self._config.get(key))}"

    def value(self, key: str) -> JsonValue:
        """The raw value; an absent key or null gives the default, None where there is none."""
        value = self.raw(key)
        return self._defaults.get(key) if value is None else value

    def raw(self, key: str) -> JsonValue:
        """The raw value; an absent key gives the default, and null None."""
        self._seen.add(key)
        return self._config.get(key, self._defaults.get(key))

    def has(self, *keys: str) -> bool:
        """True if the configuration has any of the keys, with a value or null."""
        return any(key in self._config for key in keys)

    def change_defaults(self, **changes: JsonValue) -> None:
        """Takes other defaults of some keys from here on, where the class itself sets or has changed them."""
        self._defaults = {**self._defaults, **changes}

    def ignore(self, keys: Iterable[str]) -> None:
        """Declares keys that do not change this model's mathematics."""
        self._seen.update(keys)

    def positive(self, key: str, if_null: int | None = None) -> int:
        """Reads a whole number above 0, of believable size. if_null: stands for null, if null is allowed."""
        value = self.raw(key)
        value = if_null if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.error(key, "must be a whole number above 0")
            return 1
        largest = _LARGEST.get(key, MAX_WIDTH)
        if value > largest:
            self.error(key, f"must be at most {largest}")
            return 1
        return value

    def number(self, key: str) -> float:
        """A positive number that float32, in which it is computed with, tells from 0 and infinity."""
        value = self.value(key)
        if not is_positive_float32(value):
            self.error(key, "must be a number above 0, and one of float32")
            return 1.0
        return float(value)

    def flag(self, key: str) -> bool:
        """true or false; null is false."""
        value = self.raw(key)
        if not isinstance(value, bool | None):
            self.error(key, "must be true or false")
        return value is True

    def token_id(self, key: str, problem: str) -> int:
        """The id of a token of the vocabulary. problem: of another value."""
        value = self.value(key)
        if type(value) is int and 0 <= value < self.positive("vocab_size"):
            return value
        self.error(key, problem)
        return 0

    def choice(self, key: str, allowed: Mapping[str, str]) -> str:
        """One of `allowed`, translated to this project's name for it."""
        value = self.value(key)
        if not isinstance(value, str) or value not in allowed:
            self.error(key, f"must be one of {', '.join(sorted(allowed))}")
            return next(iter(allowed.values()))
        return allowed[value]

    def needs(self, key: str, allowed: Sequence[JsonValue]) -> None:
        """Refuses a value that would ask for mathematics this model does not have.

        Absent without a default, or null, is the first of `allowed`.
        """
        value = self.value(key)
        if value is not None and value not in allowed:
            self.error(key, f"not supported; allowed: {', '.join(map(shown, allowed))}")

    def check_computed(self, values_by_key: Mapping[str, Sequence[JsonValue]]) -> None:
        """Refuses other values of keys that say what is computed anyway; see `computed_anyway`."""
        for key, values in values_by_key.items():
            if self._config.get(key) not in NEUTRAL:
                self.needs(key, [*map(self._computed_value, values)])
            self._seen.add(key)

    def _computed_value(self, value: JsonValue) -> JsonValue:
        is_key = isinstance(value, str) and value.startswith("=")
        return self.value(str(value)[1:]) if is_key else value

    def overwrite(self, key: str, value: JsonValue) -> None:
        """Overrides the value of the file, where the model's own class does so."""
        self._seen.add(key)
        self._config[key] = value

    def finish(self) -> None:
        """Refuses keys that nothing has read, then raises all errors.

        Raises:
            CheckpointError: one line per error, and one that lets all unknown keys pass.
        """
        self._check_ignored()
        left_over = sorted(without_irrelevant(self._config.keys() - self._seen - {*self._ignore.names}))
        unknown = [key for key in left_over if self._config[key] not in NEUTRAL]
        lines = [*first_lines(unknown, self._unknown, noun="unknown keys"), *self._way_out(unknown)]
        if len(unknown) == 1:
            lines = ["; ".join(lines)]
        self.errors += [f"{self._source}: {line}" for line in lines]
        if self.errors:
            raise CheckpointError(self.errors)

    def _check_ignored(self) -> None:
        """Errors of the keys that are to be passed over: of what is used, and of what is not there."""
        for key in self._ignore.names:
            name = f"{self._ignore.setting}: {shown(key)[1:-1]}"
            if key in self._seen:
                self.errors.append(f"{name}: the model uses this key of {self._source}; remove it")
            elif key not in self._config and not self._ignore.may_lack:
                self.errors.append(f"{name}: {self._source} has no such key; remove it")

    def _unknown(self, key: str) -> str:
        hint = did_you_mean(key[:_MAX_COMPARED], self._seen, cutoff=0.8)
        if not hint and _COMPUTED.search(key):
            return f"{self._shown(key)}: unknown key of what a model computes, by its name"
        return f"{self._shown(key)}: unknown key that may change what the model computes{hint}"

    def _way_out(self, unknown: Sequence[str]) -> Iterator[str]:
        """Yields the setting that passes over all unknown keys, where all can be written so."""
        if (
            unknown
            and self._ignore.setting
            and len(unknown) <= _MAX_IGNORED
            and all(map(_PLAIN.fullmatch, unknown))
        ):
            which = "it does not change" if len(unknown) == 1 else "none of these keys changes"
            names = ",".join([*self._ignore.names, *unknown])
            yield f"if {which} the results: '{self._ignore.setting}=[{names}]'"
