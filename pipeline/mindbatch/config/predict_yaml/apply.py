"""Turns a predict YAML into the lowest layer of a configuration, and lists its keys without effect."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mindbatch.config.error_log import ErrorLog, shown
from mindbatch.config.paths import LONGEST_SHOWN, resolve_path
from mindbatch.config.predict_yaml import conversions as to
from mindbatch.config.predict_yaml.conversions import (
    CHECKPOINT,
    CPU,
    DEVICE_TARGET,
    KEPT,
    Effect,
    KeyRule,
    MapsTo,
    PredictYaml,
    Redirect,
    Verdict,
    no_effect,
    rejected,
)
from mindbatch.config.predict_yaml.dynamic import (
    CLOSED_SECTION,
    DEFAULTS,
    DYNAMIC,
    FORM_SECTIONS,
    IDLE_DYNAMIC,
)
from mindbatch.config.predict_yaml.dynamic import MODEL as FLAT_MODEL
from mindbatch.config.predict_yaml.tables import IDLE, IDLE_MODEL, IDLE_PET, MODEL, PET, RUN, UNREAD
from mindbatch.config.saved import resolved_text
from mindbatch.config.schema import SchemaKeys
from mindbatch.config.settings import PREDICT_YAML, Assignment
from mindbatch.config.yaml_file import read_with_lines
from mindbatch.io.amounts import counted
from mindbatch.io.error_lines import did_you_mean
from mindbatch.io.errors import ConfigError

PROVIDER = "model.provider"

_MISSPELT = 0.87
"""Similarity from which a key is a misspelling: MindFormers' own keys without effect reach 0.865."""


@dataclass(frozen=True)
class YamlForm:
    """One of the two forms of YAMLs: which keys it has, and what each of them does."""

    table: dict[str, KeyRule]
    """The entries by dotted key. If several set the same key of MindBatch, the first given one does."""

    idle: dict[str, str]
    """Reasons why keys without an entry have no effect, by prefix of the key."""

    model: str
    """The prefix of keys that describe the model."""

    @cached_property
    def sections(self) -> frozenset[str]:
        """The keys whose values are sections."""
        depths = ((name, depth) for name in self.table for depth in range(1, name.count(".") + 1))
        return frozenset(name.rsplit(".", depth)[0] for name, depth in depths)

    @cached_property
    def order(self) -> dict[str, int]:
        """The order of application; keys that are not in the table come last, in the order of the file."""
        return {name: index for index, name in enumerate(self.table)}


STATIC_GRAPHS = YamlForm(RUN | MODEL | PET, IDLE | IDLE_MODEL | IDLE_PET, to.MODEL_CONFIG)
DYNAMIC_GRAPHS = YamlForm(DYNAMIC, IDLE_DYNAMIC, FLAT_MODEL)


@dataclass
class Applied:
    """The settings and messages that a predict YAML results in."""

    path: Path
    lines: dict[str, int]
    """Line numbers by dotted key of the YAML."""

    form: YamlForm

    settings: dict[str, Assignment] = field(default_factory=dict)
    """Settings by key of MindBatch; their sources name file, line and key of the YAML."""

    set_by: dict[str, str] = field(default_factory=dict)
    """The YAML's keys by the keys of MindBatch that they set."""

    unused: dict[str, list[str]] = field(default_factory=dict)
    """The YAML's keys without effect, by reason."""

    errors: list[str] = field(default_factory=list)

    doubtful: set[str] = field(default_factory=set)
    """MindBatch's keys for which a value was rejected."""

    device_note: str | None = None
    """A note on the device, if neither the YAML nor anything that overrides it chooses one."""

    @property
    def details(self) -> list[str]:
        """The notes in full: a line per reason, with its keys without effect."""
        unused = [f"{self.path}: no effect ({why}): {', '.join(keys)}" for why, keys in self.unused.items()]
        return [*unused, *filter(None, [self.device_note])]

    @property
    def notes(self) -> list[str]:
        """A line on the keys without effect; keys of training, logs and MindSpore are only counted."""
        parts, num_idle = [], 0
        for why, keys in self.unused.items():
            named = [key for key in keys if key in self.form.table or not key.startswith((*self.form.idle,))]
            num_idle += len(keys) - len(named)
            parts += [f"{', '.join(named)} ({why})"] if named else []
        if num_idle:
            idle = counted(num_idle, "key")
            parts.append(f"{idle} of training, logs or MindSpore's own settings (listed by --print-config)")
        unused = [f"{self.path}: no effect: {', '.join(parts)}"] if parts else []
        return [*unused, *filter(None, [self.device_note])]

    def location(self, key: str) -> str:
        """Locates `key`: `predict.yaml, line 3: seed`."""
        line = f", line {self.lines[key]}" if key in self.lines else ""
        return f"{self.path}{line}: {key}"


def apply_table(
    path: Path, keys: SchemaKeys, overrides: Mapping[str, Any] | None = None, strategy: str = ""
) -> Applied:
    """Reads the predict YAML `path` and applies the table to its keys.

    Args:
        keys: the task's keys.
        overrides: values by key of MindBatch that override the YAML's.
        strategy: see `PredictYaml`.

    Raises:
        ConfigError: the file cannot be read as plain YAML.
    """
    content, lines = read_with_lines(path, UNREAD)
    form = DYNAMIC_GRAPHS if FORM_SECTIONS & content.keys() else STATIC_GRAPHS
    applied = Applied(path, lines, form)
    values = {
        name: value for name, value in _flattened(content, "", applied) if _is_plain(name, value, applied)
    }
    if "inference" in content:
        values = DEFAULTS | values
    predict_yaml = PredictYaml(values, overrides or {}, strategy, keys.keys)
    for name in sorted(values, key=lambda name: form.order.get(name, len(form.order))):
        _look_up(name, values[name], predict_yaml, keys, applied)
    if (
        DEVICE_TARGET not in {*predict_yaml.overrides, *applied.settings, *applied.doubtful}
        and predict_yaml.device == CPU
    ):
        chooses_type = predict_yaml.overrides.keys() & {"model.dtype", "model.quantization"}
        applied.device_note = (
            f"{path}: no context.device_target: the model runs on a CPU"
            f"{'' if chooses_type else ', in float32'}; set runtime=ascend for NPUs"
        )
    if PROVIDER not in applied.settings and PROVIDER not in predict_yaml.overrides:
        provider = "mindformers" if form is STATIC_GRAPHS and predict_yaml.is_mcore else "native"
        applied.settings[PROVIDER] = Assignment(PROVIDER, provider, f"{path}: ")
    return applied


def _flattened(content: Mapping[str, Any], prefix: str, applied: Applied) -> Iterator[tuple[str, Any]]:
    """Yields the dotted keys that are not sections, with their values."""
    for leaf, value in content.items():
        name = prefix + leaf
        if "." in leaf:
            applied.errors.append(
                f"{applied.location(name)}: unknown key; write nested keys, not dotted ones"
            )
        elif name not in applied.form.sections or value is None:
            yield name, value
        elif isinstance(value, dict):
            yield from _flattened(value, f"{name}.", applied)
        else:
            applied.errors.append(f"{applied.location(name)}={shown(value)}: must be a section of keys")


def _is_plain(name: str, value: Any, applied: Applied) -> bool:
    """Checks that the value has no interpolation, which a configuration would resolve."""
    if "${" not in str(value):
        return True
    applied.errors.append(f"{applied.location(name)}: ${{...}} is not resolved here; write the value itself")
    return False


def _look_up(name: str, value: Any, predict_yaml: PredictYaml, keys: SchemaKeys, applied: Applied) -> None:
    """Applies the key `name`: sets a key, notes that it has no effect, or adds an error."""
    verdict = _verdict(name, value, predict_yaml, keys, applied)
    if verdict.effect is Effect.NO_EFFECT:
        applied.unused.setdefault(verdict.reason, []).append(name)
    elif verdict.effect is Effect.REJECTED:
        text = "" if isinstance(value, dict) else f"={shown(value)}"
        applied.errors.append(f"{applied.location(name)}{text}: {verdict.reason}")
        if isinstance(entry := applied.form.table.get(name), MapsTo):
            applied.doubtful |= {entry.target, *entry.others}


def _verdict(name: str, value: Any, predict_yaml: PredictYaml, keys: SchemaKeys, applied: Applied) -> Verdict:
    """Sets what `name` maps to; returns KEPT where it does, or where there is nothing to report."""
    form = applied.form
    if name in form.sections:
        return KEPT
    if name not in form.table:
        return _without_entry(name, value, predict_yaml, form)
    entry = form.table[name]
    if not isinstance(entry, MapsTo):
        return entry(value, predict_yaml)
    if not any(target in keys.keys for target in (entry.target, *entry.others)):
        return no_effect(entry.absent)
    if entry.target in predict_yaml.overrides:
        return no_effect(f"{entry.target} overrides it")
    converted = entry.convert(value, predict_yaml)
    if isinstance(converted, Verdict):
        return converted
    if isinstance(converted, tuple):
        return [_set(redirect, name, predict_yaml, applied) for redirect in converted][0]
    redirect = converted if isinstance(converted, Redirect) else Redirect(entry.target, converted)
    return _set(redirect, name, predict_yaml, applied)


def _without_entry(name: str, value: Any, predict_yaml: PredictYaml, form: YamlForm) -> Verdict:
    """Judges a key that the table does not have.

    A key that describes the model must agree with config.json, a key similar to one of the table is a
    misspelling, and any other key has no effect.
    """
    prefix = next((prefix for prefix in form.idle if name.startswith(prefix)), None)
    leaf = name.removeprefix(form.model)
    describes_model = prefix is None and leaf != name
    if describes_model and (entry := config_entry(leaf, predict_yaml.model_config)):
        if agrees(value, *entry):
            return KEPT
        used = f"{entry[0]}={shown(entry[1])}"
        return rejected(f"config.json of the model's folder has {used}, which is used; remove it")
    is_misspelt = prefix != name and leaf not in ALIASES
    if is_misspelt and (near := _near(name, form, is_anywhere=prefix is None)):
        return rejected(f"unknown key{near}")
    if name.startswith(CLOSED_SECTION) and form is DYNAMIC_GRAPHS:
        return rejected("unknown key; decoding parameters are keys of decoding, such as decoding=top_p")
    if prefix is not None:
        return no_effect(form.idle[prefix])
    if not describes_model:
        return no_effect("not used here")
    if predict_yaml.model_config is None:
        return no_effect("config.json of the model's folder sets it")
    return no_effect("config.json, which is used, has no such key")


def _near(name: str, form: YamlForm, *, is_anywhere: bool) -> str:
    """Suggests a similar key of the table, from any section with `is_anywhere`, as `; did you mean KEY?`."""
    section, _, leaf = name.rpartition(".")
    siblings = {key.rpartition(".")[2]: key for key in form.table if key.rpartition(".")[0] == section}
    everywhere = {key.rpartition(".")[2]: key for key in reversed(form.table)} if is_anywhere else {}
    if leaf in everywhere:
        return f"; did you mean {everywhere[leaf]}?"
    return did_you_mean(leaf, siblings, _MISSPELT, siblings.__getitem__)


def _set(redirect: Redirect, name: str, predict_yaml: PredictYaml, applied: Applied) -> Verdict:
    """Sets a key of MindBatch for the YAML's `name`, unless something overrides it."""
    key = redirect.key
    if key in predict_yaml.overrides:
        return no_effect(f"{key} overrides it")
    if key in applied.settings:
        is_same = applied.settings[key].value == redirect.value
        return KEPT if is_same else no_effect(f"{applied.set_by[key]} overrides it")
    applied.settings[key] = Assignment(key, redirect.value, f"{applied.location(name)} -> ")
    applied.set_by[key] = name
    return KEPT


def predict_layer(
    value: object, overrides: Mapping[str, Any], strategy: str, keys: SchemaKeys, log: ErrorLog
) -> tuple[list[Assignment], list[str], list[str]]:
    """Returns the settings of the predict YAML whose path is `value`, its `notes` and its `details`.

    Its errors go to `log`. overrides, strategy: see `apply_table`.
    """
    try:
        applied = apply_table(
            resolve_path(resolved_text(value, "a predict YAML of MindFormers")), keys, overrides, strategy
        )
    except ConfigError as error:
        for line in error.lines:
            log.add(line, CHECKPOINT)
        return [], [], []
    except ValueError as error:
        log.add(f"{PREDICT_YAML}={shown(value, LONGEST_SHOWN)}: {error}", CHECKPOINT)
        return [], [], []
    for line in applied.errors:
        log.add(line, *applied.doubtful)
    settings = [*applied.settings.values()]
    return settings, applied.notes, applied.details


# Keys that describe the model are only compared with config.json of its folder, which the loader reads.
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
"""Names in config.json of the model's keys whose own name is not the only one there."""
_ALIKE = {"gelu": ("gelu_new", "gelu_pytorch_tanh"), "fast_gelu": ("quick_gelu",), "silu": ("swish",)}


def config_entry(leaf: str, config: Mapping[str, Any] | None) -> tuple[str, Any] | None:
    """Returns name and value in config.json of the model's key `leaf`; None where it has none."""
    names = ALIASES.get(leaf, (leaf,))
    return next(((name, config[name]) for name in names if config and config.get(name) is not None), None)


def agrees(value: Any, name: str, configured: Any) -> bool:
    """True if the value of a predict YAML means the same as config.json's value `configured` of `name`."""
    if name == "rope_scaling" and not isinstance(value, Mapping):
        value = {"factor": value}
    return _is_same(value, configured) or configured in _ALIKE.get(str(value), ())


def _is_same(one: Any, other: Any) -> bool:
    """Compares mappings by the first one's keys, and numbers also if YAML reads them as texts (1e-5)."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(_is_same(part, other.get(name)) for name, part in one.items())
    try:
        return math.isclose(float(one), float(other), rel_tol=1e-6)
    except (TypeError, ValueError, OverflowError):
        return bool(one == other)
