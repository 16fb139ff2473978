"""Recognises, by config.json, models that are not run here: quantised, of another kind, for another task."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mindbatch.io.errors import CheckpointError, ConfigError

EXPERTS = "a mixture of experts"
_KINDS = {
    "an encoder, which generates no text": """
        albert bert camembert deberta deberta-v2 distilbert electra ernie esm longformer modernbert mpnet
        nomic_bert roberta roformer xlm-roberta xlnet""",
    "an encoder-decoder model": """
        bart blenderbot fsmt longt5 m2m_100 marian mbart mvp nllb-moe pegasus prophetnet
        switch_transformers t5gemma umt5""",
    "a model of speech or sound": "bark encodec hubert moonshine musicgen speecht5 wav2vec2 whisper",
    "a model of images": "beit clip convnext deit detr dinov2 resnet sam segformer siglip swin vit",
    "multimodal": """
        blip-2 fuyu idefics idefics2 idefics3 internvl internvl_chat kosmos-2 llava llava_next mistral3
        mllama paligemma phi3_v phi4mm pixtral qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_vl qwen3_vl
        smolvlm""",
    EXPERTS: """
        arctic dbrx deepseek_v32 dots1 grok-1 jetmoe kimi_k2 minimax olmoe""",
    "a recurrent or state-space model": """
        bamba falcon_h1 falcon_mamba jamba mamba mamba2 nemotron_h plamo2 recurrent_gemma rwkv xlstm
        zamba zamba2""",
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}
_PARTS = ("text_config", "vision_config", "audio_config", "language_config", "llm_config", "thinker_config")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_TASKS = {
    "ForSequenceClassification": "classifies texts",
    "ForTokenClassification": "labels tokens",
    "ForQuestionAnswering": "marks answers in a text",
    "ForMultipleChoice": "chooses among answers",
    "ForMaskedLM": "fills gaps in a text",
    "RewardModel": "scores texts",
}
_METHODS = {
    "aqlm": "AQLM",
    "auto-round": "AutoRound",
    "awq": "AWQ",
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed-tensors",
    "eetq": "EETQ",
    "fbgemm_fp8": "FP8",
    "fp8": "FP8",
    "gptq": "GPTQ",
    "hqq": "HQQ",
    "modelopt": "ModelOpt",
    "mxfp4": "MXFP4",
    "quanto": "Quanto",
    "torchao": "torchao",
}
QUANTIZATION = "quantization_config"
_QUANTISED = (
    "{key}: the weights are quantised ({how}), which are not read{instead}; take the folder of the original "
    "model, in float32, float16 or bfloat16"
)


def foreign_model(config: Mapping[str, Any], ignored: Collection[str] = (), instead: str = "") -> str | None:
    """Reason why a model of this configuration is not run, whatever its sizes; None if nothing tells.

    ignored: keys that are to be passed over. instead: what else than these quantised weights is read.
    """
    return next(_reasons({key: config[key] for key in config if key not in ignored}, instead), None)


def kind_of(model_type: str, config: Mapping[str, Any]) -> str | None:
    """Describes a model type that is not supported, in a few words; None where it is not known."""
    if config.get("is_encoder_decoder") is True:
        return "an encoder-decoder model"
    if "moe" in model_type or any(config.get(key) for key in _EXPERTS):
        return EXPERTS
    return _KIND_OF.get(model_type)


def _reasons(config: Mapping[str, Any], instead: str) -> Iterator[str]:
    for key in (QUANTIZATION, "compression_config", "quantization"):
        if isinstance(config.get(key), Mapping) and config[key]:
            yield _QUANTISED.format(key=key, how=_how(key, config[key]), instead=instead)
    parts = [key for key in _PARTS if isinstance(config.get(key), Mapping)]
    if parts:
        yield f"{', '.join(parts)}: a multimodal model; models of text alone are run"
    names = config.get("architectures")
    for name in names if isinstance(names, list) else []:
        for end, does in _TASKS.items():
            if isinstance(name, str) and name.endswith(end):
                yield f"architectures: {name!a} {does} and generates none; models of ...ForCausalLM are run"


def _how(key: str, settings: Mapping[str, Any]) -> str:
    method = settings.get("quant_method")
    name = _METHODS.get(method) if isinstance(method, str) else None
    if name is None:
        name = "MLX" if key == "quantization" or "group_size" in settings else "a method unknown here"
    bits = next((settings[key] for key in ("bits", "w_bit") if isinstance(settings.get(key), int)), None)
    if bits is None:
        bits = next((bits for bits in (4, 8) if settings.get(f"load_in_{bits}bit") is True), None)
    return name if bits is None else f"{name}, {bits} bits"


LEAST_SHARED = 4
"""Keys that a configuration shares at least with the type that it is near to."""
_MOST_IN_A_LINE = 3


@dataclass(frozen=True)
class NearestType:
    """differences: what a model of this type would have otherwise, as faults of the configuration."""

    model_type: str
    differences: tuple[str, ...]

    def brief(self) -> str:
        """Lists for each difference what was found, in part of a line."""
        described = [
            fault.partition(": ")[2].partition(";")[0] for fault in self.differences[:_MOST_IN_A_LINE]
        ]
        more = len(self.differences) - len(described)
        what = ", ".join([*described, *([f"and {more} more"] if more else [])])
        return f"{self.model_type}, where differs: {what or 'no key, but tensors may'}"


def nearest_type(
    config: Mapping[str, Any],
    source: str,
    keys_of: Mapping[str, Collection[str]],
    describe: Callable[[Mapping[str, Any], str], object],
) -> NearestType | None:
    """The type that understands a configuration with the fewest faults; of several, with fewest other keys.

    None where it shares few keys with any. The weights are not looked at: tensors may differ, too.

    keys_of: the types, and the keys of their configurations. describe: reads a configuration; its faults
    are CheckpointError or ConfigError.
    """
    candidates: list[tuple[int, int, NearestType]] = []
    for model_type, its_own in keys_of.items():
        if len(config.keys() & its_own) >= LEAST_SHARED:
            differences = _faults(describe, {**config, "model_type": model_type}, source)
            others = len(set(its_own) - config.keys())
            candidates.append((len(differences), others, NearestType(model_type, differences)))
    return min(candidates, key=lambda candidate: candidate[:2])[2] if candidates else None


def _faults(
    describe: Callable[[Mapping[str, Any], str], object], config: Mapping[str, Any], source: str
) -> tuple[str, ...]:
    try:
        describe(config, source)
    except (CheckpointError, ConfigError) as error:
        return tuple(error.faults)
    return ()
