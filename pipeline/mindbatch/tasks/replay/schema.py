"""The keys of `mindbatch replay`."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mindbatch.config.path_faults import folder_fault
from mindbatch.config.schema import SchemaKeys, option
from mindbatch.run.batch_config import BatchConfig


@dataclass
class ReplayConfig(BatchConfig):
    """The keys of `mindbatch replay`."""

    continues_run: ClassVar[bool] = True
    advises_sampling: ClassVar[bool] = False

    key: str | None = option(None, "key of the row to run again")

    def folder_fault(self, path: Path) -> str | None:
        return folder_fault(path)  # it is only read

    def run_faults(self, keys: SchemaKeys) -> Iterable[str]:
        yield from super().run_faults(keys)
        if not self.key:
            yield "key: must be given: the key of the row to run again"
