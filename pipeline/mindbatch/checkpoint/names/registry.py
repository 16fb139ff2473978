"""Model types that have MindFormers names, and the names that the tensors of a checkpoint have."""

from collections.abc import Collection
from dataclasses import replace

from mindbatch.checkpoint.faults import did_you_mean, shown
from mindbatch.checkpoint.names import fused_models, older_models
from mindbatch.checkpoint.names.dialect import Dialect, Heads, Options, known_names
from mindbatch.io.errors import ConfigError
from mindbatch.models.architecture import Architecture

_DIALECTS = {
    "chatglm": fused_models.chatglm,
    "chatglm_6b": older_models.chatglm_6b,
    "gpt2": older_models.gpt2,
    "llama": fused_models.llama,
    "mistral": fused_models.llama,
    "pangu_alpha": older_models.pangu_alpha,
    "qwen2": fused_models.llama,
}
NAMED_MODEL_TYPES = tuple(_DIALECTS)
MCORE_MODEL_TYPES = fused_models.MCORE_MODEL_TYPES


def dialect(model_type: str, options: Options | None = None) -> Dialect:
    """The declaration of a model type.

    Raises:
        ConfigError: MindFormers' names of the type are not known here.
    """
    options = options or Options()
    known = MCORE_MODEL_TYPES if options.is_mcore else NAMED_MODEL_TYPES
    if model_type not in known:
        whose = "MindFormers' Mcore" if options.is_mcore else "MindFormers"
        has_others = model_type in MCORE_MODEL_TYPES
        others = "; target.names=mcore has those of its Mcore models" if has_others else ""
        raise ConfigError(
            f"{whose} names of model type {shown(model_type)} are not known; allowed: "
            f"{', '.join(known)}{did_you_mean(model_type, known)}{others}"
        )
    return fused_models.mcore(options) if options.is_mcore else _DIALECTS[model_type](options)


def heads_of(arch: Architecture) -> Heads:
    experts = arch.experts.routing.experts if arch.experts else 0
    return Heads(arch.heads, arch.kv_heads, arch.head_dim, experts)


def has_mindformers_names(model_type: str, names: Collection[str]) -> bool:
    """True if more of the names are MindFormers' than Hugging Face's."""
    forms = _forms(model_type)
    if not forms:
        return False
    original = known_names(dialect(model_type, forms[0]), names, is_stored=False)
    stored = [known_names(dialect(model_type, options), names, is_stored=True) for options in forms]
    return max(map(len, stored)) > len(original)


def detected_options(model_type: str, names: Collection[str], options: Options) -> Options:
    """The options with the form that fits more of the names, which are MindFormers'."""
    forms = [
        replace(options, qkv_concat=form.qkv_concat, is_mcore=form.is_mcore) for form in _forms(model_type)
    ]
    return max(
        forms, key=lambda form: len(known_names(dialect(model_type, form), names, is_stored=True))
    )  # the first of equals


def _forms(model_type: str) -> list[Options]:
    """The forms in which MindFormers may have a model type; none where it is not known."""
    older = [*_KINDS] if model_type in NAMED_MODEL_TYPES else []
    return older + ([Options(is_mcore=True)] if model_type in MCORE_MODEL_TYPES else [])


def has_fused_form(model_type: str) -> bool:
    """True if the model type has the option qkv_concat."""
    if model_type not in NAMED_MODEL_TYPES:
        return False
    plain, fused = (dialect(model_type, options) for options in _KINDS)
    return plain != fused


_KINDS = (Options(), Options(qkv_concat=True))
