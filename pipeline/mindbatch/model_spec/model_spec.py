"""ModelSpec: a model as it is declared, its parameters, division and sizes; no weights and no MindSpore."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.stage_cut import cut, stage_specs
from mindbatch.architecture.tensor_spec import TensorSpec
from mindbatch.kernels.ascend.step import is_plain, limit_errors, max_gathered_tokens, widened
from mindbatch.kernels.memory import FLOAT32, padded_head
from mindbatch.kernels.shapes import AttentionShape
from mindbatch.layers.attention import attention_shape
from mindbatch.model_spec.registry import declaration, tensor_specs, unused_tensors
from mindbatch.parallel.topology import WHOLE, WHOLE_MODEL, DeviceMap, RankPart, Stage, TensorSlice


@dataclass(frozen=True)
class ModelSpec:
    """A model as one of its ranks has it: parameters, division and sizes."""

    architecture: Architecture
    shard: TensorSlice
    """The rank's slice of every layer."""
    stage: Stage
    """The rank's layers."""
    stages: tuple[Stage, ...]
    """All stages of the model. Every rank's cache holds the same number of tokens, as many as fit on the
    stage with the most layers."""

    @classmethod
    def of(
        cls, architecture: Architecture, part: RankPart = WHOLE_MODEL, device_map: DeviceMap = None
    ) -> ModelSpec:
        """Makes the spec of a part of a model. device_map: see `stage_cut.cut`.

        The architecture must be divisible; see `described_folder.check_division`.
        """
        stages = tuple(cut(tensor_specs(architecture), part.stages, device_map))
        return cls(architecture, part.shard, stages[part.stage], stages)

    @property
    def parameters(self) -> Sequence[TensorSpec]:
        """Parameters of the whole model; `stage_parameters` are those of the rank's stage."""
        return tensor_specs(self.architecture)

    @property
    def stage_parameters(self) -> Sequence[TensorSpec]:
        return stage_specs(self.parameters, self.stage)

    @property
    def prefix(self) -> str:
        """Prefix of the names in the checkpoint; bare base models are saved without it."""
        return declaration(self.model_type).prefix

    def is_unused(self, name: str) -> bool:
        """True of a tensor that files may hold though nothing reads it."""
        return any(fnmatchcase(name, pattern) for pattern in unused_tensors(self.architecture))

    @property
    def model_type(self) -> str:
        return self.architecture.model_type

    @property
    def vocab_size(self) -> int:
        return self.architecture.vocab_size

    @property
    def max_positions(self) -> int:
        """Maximum length of prompt and output together, in tokens."""
        return self.architecture.max_positions

    @cached_property
    def num_parameters(self) -> int:
        """Number of weights of the whole model."""
        return sum(spec.numbers(WHOLE) for spec in self.parameters)

    @cached_property
    def rank_parameters(self) -> tuple[int, ...]:
        """Number of weights of a rank, for each stage."""
        of_stages = (stage_specs(self.parameters, stage) for stage in self.stages)
        return tuple(
            sum(spec.numbers(self.shard) for spec in stage_parameters) for stage_parameters in of_stages
        )

    @property
    def decoder_start_id(self) -> int | None:
        """Id that the decoder of an encoder-decoder begins with; None for other models."""
        encoder = self.architecture.encoder
        return None if encoder is None else encoder.start_id

    @property
    def is_prefix_bidirectional(self) -> bool:
        """True if tokens of a prompt see the tokens behind them."""
        return self.decoder_start_id is not None or self.architecture.two_positions is not None

    @property
    def cached_numbers(self) -> int:
        """KV-cache numbers per token on the rank with the most layers, padding included."""
        return max(map(self._cached_numbers, self.stages))

    def _cached_numbers(self, stage: Stage) -> int:
        """KV-cache numbers per token in the layers of a stage, padding included."""
        arch, ranks = self.architecture, self.shard.size
        sizes = [arch.heads_of(layer) for layer in stage.layers if arch.has_cache(layer)]
        return sum(
            max(1, layer_sizes.kv_heads // ranks) * (layer_sizes.head_dim + padded_head(layer_sizes.head_dim))
            for layer_sizes in sizes
        )

    @property
    def state_bytes(self) -> int:
        """Bytes of a sequence's recurrent state on the rank with the most such layers; 0 without any."""
        recurrence = self.architecture.recurrence
        if recurrence is None:
            return 0
        layer = sum(math.prod(shape.state) for shape in recurrence.shapes(self.shard.size))
        max_layers = max(sum(map(self.architecture.is_recurrent, stage.layers)) for stage in self.stages)
        return max_layers * layer * FLOAT32.itemsize

    def cache_bytes_per_token(self, itemsize: int, device: str = "CPU", stage: Stage | None = None) -> int:
        """KV-cache bytes per token. stage: by default the one with the most layers."""
        numbers = self.cached_numbers if stage is None else self._cached_numbers(stage)
        if device == "Ascend" and self._alibi_numbers:
            numbers = -(-numbers * (self.head_dim + self._alibi_numbers) // self.head_dim)
        return numbers * itemsize

    @property
    def head_dim(self) -> int:
        """Width of an attention head, which a device's operators may limit."""
        return self.architecture.head_dim

    @property
    def _shape(self) -> AttentionShape:
        """Attention of the first layer; on Ascend the layers of a model differ in their windows alone."""
        return attention_shape(self.architecture, 0, WHOLE)

    @property
    def _alibi_numbers(self) -> int:
        """Numbers that a head has besides on Ascend, for ALiBi."""
        return widened(self._shape).head_dim - self._shape.head_dim

    @property
    def is_gathered(self) -> bool:
        """True if Ascend computes attention by plain operators; see `is_plain`."""
        return is_plain(self._shape)

    def ascend_errors(self, block_size: int) -> Iterator[str]:
        """Yields reasons why Ascend's operators do not take the model, or this block size."""
        if beyond := declaration(self.model_type).beyond_ascend:
            yield (
                f"runtime.device_target=Ascend: {self.model_type} has {beyond}, which is not computed there; "
                "allowed: CPU"
            )
        yield from limit_errors(self.head_dim + self._alibi_numbers, block_size, is_gathered=self.is_gathered)

    def max_step_tokens(self, device: str, seq_length: int) -> int | None:
        """Maximum number of tokens of a step if attention's memory bounds it, else None."""
        if device != "Ascend" or not self.is_gathered:
            return None
        kv_heads = max(1, self.architecture.kv_heads // self.shard.size)
        return max_gathered_tokens(seq_length, 2 * kv_heads * self.architecture.head_dim)

    @property
    def expert_numbers(self) -> int:
        """Numbers that the C++ experts of a rank keep for each token of a step.

        These are its scores and, for each chosen expert, the row, two inner vectors and their product.
        """
        experts = self.architecture.experts
        if experts is None:
            return 0

        def kept(count: int, chosen: int, inner: int) -> int:
            return count + chosen * (self.architecture.hidden_size + 3 * -(-inner // self.shard.size))

        routed = kept(experts.routing.experts, experts.routing.chosen, experts.intermediate_size)
        return max(routed, *(kept(1, 1, inner) for inner in experts.shared), 0)

    def expert_bytes(self, num_tokens: int, device: str) -> int:
        """Bytes that experts keep for the rows of a step on a CPU; all layers share them."""
        return num_tokens * self.expert_numbers * FLOAT32.itemsize if device == "CPU" else 0
