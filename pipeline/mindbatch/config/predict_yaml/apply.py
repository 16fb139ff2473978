"""A predict YAML as the lowest layer of a configuration: its settings, and its keys without effect."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from mindbatch.config.error_log import ErrorLog, shown
from mindbatch.config.layers import PREDICT_YAML, Assignment
from mindbatch.config.paths import LONGEST_SHOWN, resolve_path
from mindbatch.config.predict_yaml import conversions as to
from mindbatch.config.predict_yaml.conversions import (
    CHECKPOINT,
    CPU,
    DEVICE_TARGET,
    Agreed,
    Entry,
    Facts,
    InPlaceOf,
    Sets,
    Unfit,
    WithoutEffect,
)
from mindbatch.config.predict_yaml.tables import IDLE, IDLE_MODEL, IDLE_PET, MODEL, PET, RUN, UNREAD
from mindbatch.config.saved import resolved_text
from mindbatch.config.schema import SchemaKeys
from mindbatch.config.yaml_file import read_with_lines
from mindbatch.io.amounts import counted
from mindbatch.io.error_lines import did_you_mean
from mindbatch.io.errors import ConfigError

PROVIDER = "model.provider"

TABLE: dict[str, Entry] = RUN | MODEL | PET
"""By dotted key. Where several set one key of ours, the first that is given does."""

_IDLE = IDLE | IDLE_MODEL | IDLE_PET
_MISSPELT = 0.87
"""How much alike a key and one of the table must be: idle keys of MindFormers are up to 0.865."""

SECTIONS = frozenset(name.rsplit(".", depth)[0] for name in TABLE for depth in range(1, name.count(".") + 1))
"""Keys that hold keys."""
_PLACES = {name: place for place, name in enumerate(TABLE)}
"""The order of application; keys that are not in the table come last, as in the file."""


@dataclass
class Applied:
    path: Path
    lines: dict[str, int]
    """By dotted key of the YAML."""

    settings: dict[str, Assignment] = field(default_factory=dict)
    """By our key; the source of each names file, line and key of the YAML."""

    set_by: dict[str, str] = field(default_factory=dict)
    """The YAML's key by ours."""

    unused: dict[str, list[str]] = field(default_factory=dict)
    """The YAML's keys without effect, by the reason."""

    errors: list[str] = field(default_factory=list)

    doubtful: set[str] = field(default_factory=set)
    """Our keys for which a value was refused."""

    device_note: str | None = None
    """Note on where the model runs, if neither the YAML nor anything that overrides it says so."""

    @property
    def details(self) -> list[str]:
        """A line for each reason, with the keys that have no effect for it."""
        unused = [f"{self.path}: no effect ({why}): {', '.join(keys)}" for why, keys in self.unused.items()]
        return [*unused, *filter(None, [self.device_note])]

    @property
    def notes(self) -> list[str]:
        """A line for all keys without effect: those that no run has a use for are counted."""
        parts, num_idle = [], 0
        for why, keys in self.unused.items():
            named = [key for key in keys if key in TABLE or not key.startswith((*_IDLE,))]
            num_idle += len(keys) - len(named)
            parts += [f"{', '.join(named)} ({why})"] if named else []
        if num_idle:
            idle = counted(num_idle, "key")
            parts.append(f"{idle} of training, logs or MindSpore's own settings (--print-config says which)")
        unused = [f"{self.path}: no effect: {', '.join(parts)}"] if parts else []
        return [*unused, *filter(None, [self.device_note])]

    def place(self, key: str) -> str:
        """Locates `key`: `predict.yaml, line 3: seed`."""
        line = f", line {self.lines[key]}" if key in self.lines else ""
        return f"{self.path}{line}: {key}"


def apply_table(
    path: Path, keys: SchemaKeys, above: Mapping[str, Any] | None = None, strategy: str = ""
) -> Applied:
    """Reads the predict YAML `path` and looks each of its keys up.

    keys: of the task. above: values by our key that go before the YAML's. strategy: as of Facts.
    Raises ConfigError when the file cannot be read as plain YAML.
    """
    content, lines = read_with_lines(path, UNREAD)
    applied = Applied(path, lines)
    values = {name: value for name, value in _flat(content, "", applied) if _is_plain(name, value, applied)}
    facts = Facts(values, above or {}, strategy)
    for name in sorted(values, key=lambda name: _PLACES.get(name, len(_PLACES))):
        _look_up(name, values[name], facts, keys, applied)
    if DEVICE_TARGET not in {*facts.above, *applied.settings, *applied.doubtful} and facts.device == CPU:
        rounds = facts.above.keys() & {"model.dtype", "model.quantization"}
        applied.device_note = (
            f"{path}: no context.device_target: the model runs on a CPU{'' if rounds else ', in float32'}; "
            "runtime=ascend is for NPUs"
        )
    if PROVIDER not in applied.settings and PROVIDER not in facts.above:
        provider = "mindformers" if facts.is_mcore else "native"
        applied.settings[PROVIDER] = Assignment(PROVIDER, provider, f"{path}: ")
    return applied


def _flat(content: Mapping[str, Any], prefix: str, applied: Applied) -> Iterator[tuple[str, Any]]:
    """Each key that is not a section, dotted, with its value."""
    for leaf, value in content.items():
        name = prefix + leaf
        if "." in leaf:
            applied.errors.append(f"{applied.place(name)}: unknown key; keys are nested, not dotted")
        elif name not in SECTIONS or value is None:
            yield name, value
        elif isinstance(value, dict):
            yield from _flat(value, f"{name}.", applied)
        else:
            applied.errors.append(f"{applied.place(name)}={shown(value)}: must hold keys")


def _is_plain(name: str, value: Any, applied: Applied) -> bool:
    """Checks that the value has no reference in it, which would be replaced in a configuration."""
    if "${" not in str(value):
        return True
    applied.errors.append(f"{applied.place(name)}: ${{...}} is not replaced here; write the value itself")
    return False


def _look_up(name: str, value: Any, facts: Facts, keys: SchemaKeys, applied: Applied) -> None:
    try:
        if name in SECTIONS:
            raise Agreed
        if name not in TABLE:
            _pass_over(name, value, facts)
        key, converted = _converted(TABLE[name], value, facts, keys)
        _set(key, converted, name, facts, applied)
    except Agreed:
        pass
    except WithoutEffect as reason:
        applied.unused.setdefault(str(reason), []).append(name)
    except Unfit as reason:
        written = "" if isinstance(value, dict) else f"={shown(value)}"
        applied.errors.append(f"{applied.place(name)}{written}: {reason}")
        if isinstance(entry := TABLE.get(name), Sets):
            applied.doubtful.add(entry.ours)


def _pass_over(name: str, value: Any, facts: Facts) -> NoReturn:
    """Raises what becomes of a key without an entry: one that describes the network must agree with
    config.json, one much like a key with an entry was meant to be that, and any other has no effect."""
    idle = next((prefix for prefix in _IDLE if name.startswith(prefix)), None)
    leaf = name.removeprefix(to.MODEL_CONFIG)
    describes_network = idle is None and leaf != name
    if describes_network and (entry := config_entry(leaf, facts.model_config)):
        if agrees(value, *entry):
            raise Agreed
        theirs = f"{entry[0]}={shown(entry[1])}"
        raise Unfit(f"config.json of the model's folder says {theirs}, and that counts; remove it")
    if idle != name and leaf not in ALIASES and (near := _near(name, is_anywhere=idle is None)):
        raise Unfit(f"unknown key{near}")
    if idle is not None:
        raise WithoutEffect(_IDLE[idle])
    if not describes_network:
        raise WithoutEffect("not used here")
    if facts.model_config is None:
        raise WithoutEffect("config.json of the model's folder says it")
    raise WithoutEffect("config.json, which counts, has no such key")


def _near(name: str, *, is_anywhere: bool) -> str:
    """`; did you mean KEY?` with a key of the table, or nothing. is_anywhere: also one of another section."""
    section, _, leaf = name.rpartition(".")
    siblings = {key.rpartition(".")[2]: key for key in TABLE if key.rpartition(".")[0] == section}
    everywhere = {key.rpartition(".")[2]: key for key in reversed(TABLE)} if is_anywhere else {}
    if leaf in everywhere:
        return f"; did you mean {everywhere[leaf]}?"
    return did_you_mean(leaf, siblings, _MISSPELT, siblings.__getitem__)


def _converted(entry: Entry, value: Any, facts: Facts, keys: SchemaKeys) -> tuple[str, Any]:
    """Our key and its value. Raises Agreed, WithoutEffect or Unfit."""
    if not isinstance(entry, Sets):
        entry(value, facts)
    if entry.ours not in keys.keys:
        raise WithoutEffect(entry.absent)
    if entry.ours in facts.above:
        raise WithoutEffect(f"{entry.ours} is given")
    converted = entry.convert(value, facts)
    return (converted.key, converted.value) if isinstance(converted, InPlaceOf) else (entry.ours, converted)


def _set(key: str, value: Any, name: str, facts: Facts, applied: Applied) -> None:
    """Sets our `key` for the YAML's `name`, unless something goes before it. Raises Agreed, WithoutEffect."""
    if key in facts.above:
        raise WithoutEffect(f"{key} is given")
    if key in applied.settings:
        first = applied.set_by[key]
        raise Agreed if applied.settings[key].value == value else WithoutEffect(f"{first} goes before it")
    applied.settings[key] = Assignment(key, value, f"{applied.place(name)} -> ")
    applied.set_by[key] = name


def predict_layer(
    written: object, above: Mapping[str, Any], strategy: str, keys: SchemaKeys, log: ErrorLog
) -> tuple[list[Assignment], list[str], list[str]]:
    """The settings of the predict YAML that `written` names, and its `notes` and `details`.

    above, strategy: as of `apply_table`. Its errors go to `log`.
    """
    try:
        applied = apply_table(
            resolve_path(resolved_text(written, "a predict YAML of MindFormers")), keys, above, strategy
        )
    except ConfigError as error:
        for line in error.lines:
            log.add(line, CHECKPOINT)
        return [], [], []
    except ValueError as error:
        log.add(f"{PREDICT_YAML}={shown(written, LONGEST_SHOWN)}: {error}", CHECKPOINT)
        return [], [], []
    for line in applied.errors:
        log.add(line, *applied.doubtful)
    settings = [*applied.settings.values()]
    return settings, applied.notes, applied.details


# Keys that describe the model are compared with config.json of its folder, which is what counts here.
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer")
_HEADS = ("num_attention_heads", "num_heads", "n_head")
_GROUPS = ("num_key_value_heads", "multi_query_group_num", *_HEADS)
_EPSILON = ("rms_norm_eps", "layernorm_epsilon", "layer_norm_epsilon", "layer_norm_eps")
_INNER = ("intermediate_size", "ffn_hidden_size", "n_inner")
_VOCABULARY = ("vocab_size", "padded_vocab_size")
_BIAS = ("attention_bias", "add_qkv_bias")
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")

ALIASES: dict[str, tuple[str, ...]] = {
    **{name: names for names in (_LAYERS, _HEADS, _EPSILON, _INNER, _BIAS, _EXPERTS) for name in names},
    **dict.fromkeys(("n_kv_heads", "num_query_groups", *_GROUPS[:2]), _GROUPS),
    "hidden_size": ("hidden_size", "n_embd"),
    "vocab_size": _VOCABULARY,
    "padded_vocab_size": _VOCABULARY[::-1],
    "kv_channels": ("kv_channels", "head_dim"),
    "head_dim": ("head_dim", "kv_channels"),
    "theta": ("rope_theta",),
    "rotary_base": ("rope_theta",),
    "scaling_factor": ("rope_scaling",),
    "rotary_scaling_factor": ("rope_scaling",),
    "hidden_act": ("hidden_act", "activation_function"),
    "qkv_has_bias": _BIAS,
    "mlp_has_bias": ("mlp_bias",),
    "add_bias_linear": ("add_bias_linear", "mlp_bias"),
    "num_moe_experts": _EXPERTS,
    "moe_router_topk": ("num_experts_per_tok",),
    "moe_ffn_hidden_size": ("moe_intermediate_size",),
    "moe_router_num_groups": ("n_group",),
    "moe_router_group_topk": ("topk_group",),
    "moe_router_topk_scaling_factor": ("routed_scaling_factor",),
    "shared_expert_num": ("n_shared_experts",),
    "qk_head_dim": ("qk_nope_head_dim",),
    "qk_pos_emb_head_dim": ("qk_rope_head_dim",),
}
"""What config.json calls a key of the network, where not only by the key's own name."""
_ALIKE = {"gelu": ("gelu_new", "gelu_pytorch_tanh"), "fast_gelu": ("quick_gelu",), "silu": ("swish",)}


def config_entry(leaf: str, config: Mapping[str, Any] | None) -> tuple[str, Any] | None:
    """Name and value in config.json of the key `leaf` of the network; None where it says nothing of it."""
    names = ALIASES.get(leaf, (leaf,))
    return next(((name, config[name]) for name in names if config and config.get(name) is not None), None)


def agrees(value: Any, name: str, counting: Any) -> bool:
    """True if the value of a predict YAML means what config.json says under `name`."""
    if name == "rope_scaling" and not isinstance(value, Mapping):
        value = {"factor": value}
    return _is_same(value, counting) or counting in _ALIKE.get(str(value), ())


def _is_same(one: Any, other: Any) -> bool:
    """Equal, mappings in all parts of the first; a number is also one where YAML has a text, as 1e-5 is."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(_is_same(part, other.get(name)) for name, part in one.items())
    try:
        return math.isclose(float(one), float(other), rel_tol=1e-6)
    except (TypeError, ValueError, OverflowError):
        return bool(one == other)
