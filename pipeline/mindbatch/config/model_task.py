"""What every task that runs a model has in common: its sections, and what they may be together."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from mindbatch.config.model_faults import (
    decoding_faults,
    ignored_faults,
    model_faults,
    parallel_faults,
    runtime_faults,
    settle_model_paths,
    speculation_faults,
)
from mindbatch.config.model_schema import DecodingConfig, ModelConfig, ParallelConfig, RuntimeConfig
from mindbatch.config.schema import SchemaKeys, TaskConfig, section


@dataclass
class ModelTaskConfig(TaskConfig):
    """The sections of every task that runs a model."""

    verbose_key: ClassVar[str] = "runtime.verbose"

    uses_one_decoding: ClassVar[bool] = False
    """Whether every row is decoded as `decoding` says: an assistant that it asks nothing of is a mistake."""

    advises_sampling: ClassVar[bool] = False
    """Whether the user is told that the model recommends sampling where the run is plainly greedy."""

    model: ModelConfig = section(ModelConfig)
    decoding: DecodingConfig = section(DecodingConfig)
    parallel: ParallelConfig = section(ParallelConfig)
    runtime: RuntimeConfig = section(RuntimeConfig)

    @property
    def thread_count(self) -> int | None:
        return self.runtime.num_threads

    def settle_paths(self) -> list[str]:
        return settle_model_paths(self.model)

    def own_faults(self, keys: SchemaKeys) -> Iterable[str]:
        yield from ignored_faults("model.ignore_config_keys", self.model.ignore_config_keys)
        yield from self.run_faults(keys)

    def run_faults(self, keys: SchemaKeys) -> Iterable[str]:
        """What keeps the model from being run so; a task adds what is wrong with its own sections."""
        yield from self.device_faults()
        yield from runtime_faults(self.runtime, self.model)
        yield from decoding_faults(self)
        yield from speculation_faults(self)

    def device_faults(self) -> Iterable[str]:
        """What keeps the model from being run on this device and these ranks."""
        yield from model_faults(self.model, self.runtime)
        yield from parallel_faults(self.parallel, self.model)
