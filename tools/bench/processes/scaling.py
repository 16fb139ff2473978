"""A model on paper: tokens/s of dp x mp devices, from the sizes of a model and of the devices. Runs nothing.

    python tools/bench scaling                       Llama-3-70B in bfloat16 on 64 NPUs
    python tools/bench scaling --config CONFIG.json --devices 16 --batch 32 --link 100

docs/performance.md explains the model and what it assumes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.command_line import parser_of
from mindbatch.architecture.architecture import Architecture
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import describe
from mindbatch.parallel.topology import RankPart, TensorSlice

LLAMA_3_70B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
GIB = 2**30


@dataclass(frozen=True)
class Device:
    """Assumptions about a device and the links between those of a replica.

    memory: bytes. bandwidth: its bytes/s in a step. arithmetic: operations/s that products reach.
    latency: seconds of an AllReduce of nothing. link: bytes/s out of a device meanwhile, and as many in.
    host: seconds of a step in which the device waits for scheduler, sampling and launches.
    """

    memory: float
    bandwidth: float
    arithmetic: float
    latency: float
    link: float
    host: float


@dataclass(frozen=True)
class StepTime:
    """Seconds of a decoding step, by what takes them."""

    weights: float
    cache: float
    collectives: float
    host: float

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.collectives + self.host


@dataclass(frozen=True)
class Replica:
    """A model over `model_parallel` devices; `itemsize`: bytes of a weight and of a number in the cache."""

    arch: Architecture
    model_parallel: int
    device: Device
    itemsize: int = 2

    @property
    def _spec(self) -> ModelSpec:
        return ModelSpec.of(self.arch, RankPart(TensorSlice(0, self.model_parallel)))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights on the first rank."""
        return self.itemsize * sum(self._spec.rank_parameters)

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in the cache of a rank."""
        return self._spec.cache_bytes_per_token(self.itemsize)

    def fitting(self, context: int) -> int:
        """Sequences of so many tokens that fit beside the weights."""
        return max(0, int(self.device.memory - self.weight_bytes) // (self.token_bytes * context))

    def step(self, batch: int, context: int) -> StepTime:
        """Seconds of a step of `batch` sequences that see `context` tokens each.

        Weights are read once a step or computed with, whichever takes longer; an AllReduce moves
        2 (n - 1) / n of its bytes out of each of n devices (the least that is possible), two for each layer,
        and the logits are gathered once.
        """
        device, ranks = self.device, self.model_parallel
        numbers = self.weight_bytes / self.itemsize
        weights = max(self.weight_bytes / device.bandwidth, 2 * numbers * batch / device.arithmetic)
        cache = batch * context * self.token_bytes / device.bandwidth
        return StepTime(weights, cache, self._collectives(batch) if ranks > 1 else 0.0, device.host)

    def _collectives(self, batch: int) -> float:
        share = (self.model_parallel - 1) / self.model_parallel
        hidden = batch * self.arch.hidden_size * self.itemsize
        logits = batch * self.arch.vocab_size * self.itemsize
        moved = 2 * self.arch.num_layers * 2 * share * hidden + share * logits
        calls = 2 * self.arch.num_layers + 1
        return calls * self.device.latency + moved / self.device.link


def table(arch: Architecture, device: Device, devices: int, batch: int, context: int) -> list[str]:
    """A line for each way to divide the devices."""
    lines = [
        "| dp x mp | weights GiB | fit | batch | step ms | of it collectives | tokens/s | of linear |",
        "|---|---|---|---|---|---|---|---|",
    ]
    linear: float | None = None
    for model_parallel in (size for size in (1, 2, 4, 8, 16) if devices % size == 0):
        replica = Replica(arch, model_parallel, device)
        fitting, replicas = replica.fitting(context), devices // model_parallel
        name, gib = f"{replicas} x {model_parallel}", replica.weight_bytes / GIB
        if not fitting:
            lines.append(f"| {name} | {gib:.1f} | 0 | - | - | - | - | - |")
            continue
        taken = min(batch, fitting)
        step = replica.step(taken, context)
        rate = taken / step.total
        linear = linear or rate / model_parallel  # of a device, in the smallest replica that fits
        lines.append(
            f"| {name} | {gib:.1f} | {fitting} | {taken} | {1000 * step.total:.1f} | "
            f"{step.collectives / step.total:.0%} | {replicas * rate:,.0f} | "
            f"{rate / model_parallel / linear:.2f} |"
        )
    return lines


def described(path: Path | None) -> Architecture:
    """The model of a config.json; Llama-3-70B without one."""
    config: Mapping[str, Any] = LLAMA_3_70B if path is None else json.loads(path.read_text("utf-8"))
    return describe(config)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--config", type=Path, help="config.json of a model")
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64, help="sequences of a replica, if they fit")
    parser.add_argument("--context", type=int, default=1024, help="tokens that a sequence sees, on average")
    parser.add_argument("--memory", type=float, default=60, help="GiB of a device for weights and cache")
    parser.add_argument("--bandwidth", type=float, default=1000, help="GB/s of memory, reached")
    parser.add_argument("--arithmetic", type=float, default=150, help="TFLOP/s of products, reached")
    parser.add_argument("--latency", type=float, default=20, help="microseconds of an empty AllReduce")
    parser.add_argument("--link", type=float, default=100, help="GB/s out of a device in an AllReduce")
    parser.add_argument("--host", type=float, default=3, help="milliseconds of a step on the host")
    options = parser.parse_args()
    device = Device(
        memory=options.memory * GIB,
        bandwidth=options.bandwidth * 1e9,
        arithmetic=options.arithmetic * 1e12,
        latency=options.latency * 1e-6,
        link=options.link * 1e9,
        host=options.host * 1e-3,
    )
    arch = described(options.config)
    print("\n".join(table(arch, device, options.devices, options.batch, options.context)))
