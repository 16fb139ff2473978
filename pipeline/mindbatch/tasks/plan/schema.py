"""The keys of `mindbatch plan`: those of a batch, and how its time is estimated."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from mindbatch.config.error_log import shown
from mindbatch.config.hub_models import resolve_model_paths
from mindbatch.config.launch_schema import world_size_of
from mindbatch.config.lora_schema import resolve_lora_paths
from mindbatch.config.paths import any_path, resolved
from mindbatch.config.schema import SchemaKeys, option
from mindbatch.dataset.data_config import NO_DATA, resolve_data
from mindbatch.fields import kinds as kind
from mindbatch.run.batch_config import BatchConfig
from mindbatch.tasks.layout.schema import rank_errors


@dataclass
class PlanConfig(BatchConfig):
    """The keys of `mindbatch plan`."""

    advises_sampling: ClassVar[bool] = False
    starts_processes: ClassVar[bool] = False

    rate: float | None = option(None, "generated tokens/s for the estimate; null: no estimate of the time")
    calibrate: bool = option(False, "estimate the time by running a few of the rows, 10 s at most")
    report: str = option("text", "text or json", kind.choice("text", "json"))

    def resolve_paths(self) -> list[str]:
        errors = resolve_model_paths(self.model)
        resolve_data(self.data, errors, f"{NO_DATA}; without data mindbatch layout says what ranks hold")
        self.output.dir = resolved("output.dir", self.output.dir, any_path, errors)  # nothing is written
        resolve_lora_paths(self.lora, errors)
        return errors

    def package_errors(self) -> Iterable[str]:
        return ()  # a plan is arithmetic, on any laptop

    def run_errors(self, keys: SchemaKeys) -> Iterable[str]:
        yield from rank_errors(self.parallel)
        yield from super().run_errors(keys)
        if self.rate is not None and not (math.isfinite(self.rate) and self.rate > 0):
            yield f"rate={shown(self.rate)}: must be above 0, in generated tokens/s"
        if self.rate is not None and self.calibrate:
            yield "rate, calibrate: only one of these can be given; calibrate=true measures the rate"
        if self.calibrate and world_size_of(self.parallel) > 1:
            yield "calibrate=true: measures one process, and parallel.* makes several; give rate, of all"
