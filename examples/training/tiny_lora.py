"""Low-rank adapters for the tiny network, trained beside its frozen weights and written as a PEFT folder."""

# mypy: allow-subclassing-any

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from safetensors.numpy import save

from tiny_network import TinyGPT2

BASE = "mindbatch/tiny_gpt2"
EVERY_LINEAR = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")


@dataclass(frozen=True)
class LoraSettings:
    """targets: modules of every block, such as attn.c_attn. The scaling is alpha / rank."""

    rank: int
    alpha: int
    targets: tuple[str, ...] = EVERY_LINEAR


class AdaptedLinear(nn.Cell):
    """A linear layer plus the low-rank product (Hu et al. 2021); A is random and B zero at the beginning."""

    def __init__(self, base: nn.Cell, settings: LoraSettings, rng: np.random.Generator) -> None:
        super().__init__()
        inputs, outputs = base.weight.shape
        self.base = base
        start = rng.uniform(-1, 1, (settings.rank, inputs)) * (3 / inputs) ** 0.5
        self.lora_a = Parameter(Tensor(start.astype(np.float32)))  # [r, inputs]
        self.lora_b = Parameter(Tensor(np.zeros((outputs, settings.rank), np.float32)))  # [outputs, r]
        self.scaling = settings.alpha / settings.rank

    def construct(self, hidden: Tensor) -> Tensor:
        low = ops.matmul(hidden, self.lora_a.T)
        return self.base(hidden) + self.scaling * ops.matmul(low, self.lora_b.T)


def adapt(
    network: TinyGPT2, settings: LoraSettings, rng: np.random.Generator, before: Sequence[Parameter] = ()
) -> list[Parameter]:
    """Freezes the network and puts adapters around its targets; returns what is left to train.

    before: of another network, whose values are taken over.
    """
    for parameter in network.get_parameters():
        parameter.requires_grad = False
    adapted = [
        parameter
        for owner, attribute, name in _places(network, settings)
        for parameter in _wrapped(owner, attribute, name, settings, rng)
    ]
    if before:
        for parameter, other in zip(adapted, before, strict=True):
            parameter.set_data(Tensor(other.asnumpy()))
    return adapted


def _places(network: TinyGPT2, settings: LoraSettings) -> Iterator[tuple[nn.Cell, str, str]]:
    for index, block in enumerate(network.transformer.h):
        for target in settings.targets:
            owner, _, attribute = target.rpartition(".")
            yield getattr(block, owner), attribute, f"transformer.h.{index}.{target}"


def _wrapped(
    owner: nn.Cell, attribute: str, name: str, settings: LoraSettings, rng: np.random.Generator
) -> tuple[Parameter, Parameter]:
    base = getattr(owner, attribute)
    names = [parameter.name for parameter in base.get_parameters()]
    layer = AdaptedLinear(base, settings, rng)  # which renames the parameters, to the same in every block
    setattr(owner, attribute, layer)
    for parameter, kept in zip(base.get_parameters(), names, strict=True):
        parameter.name = kept
    layer.lora_a.name, layer.lora_b.name = f"{name}.lora_A.weight", f"{name}.lora_B.weight"
    return layer.lora_a, layer.lora_b


def write_peft_folder(folder: Path, adapted: list[Parameter], settings: LoraSettings) -> None:
    """adapter_config.json and adapter_model.safetensors, as PEFT has them for a GPT-2."""
    config = {
        "base_model_name_or_path": BASE,
        "bias": "none",
        "fan_in_fan_out": True,
        "inference_mode": True,
        "lora_alpha": settings.alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": settings.rank,
        "target_modules": list(settings.targets),
        "task_type": "CAUSAL_LM",
    }
    tensors = {
        f"base_model.model.{parameter.name}": np.ascontiguousarray(parameter.asnumpy())
        for parameter in adapted
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "adapter_model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
