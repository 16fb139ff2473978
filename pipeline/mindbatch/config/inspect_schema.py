"""The keys of `mindbatch inspect`."""

from dataclasses import dataclass
from typing import ClassVar

from mindbatch.config.schema_fields import TaskConfig, option


@dataclass
class InspectConfig(TaskConfig):
    """The keys of `mindbatch inspect`."""

    positional: ClassVar[tuple[str, ...]] = ("path",)

    path: str | None = option(
        None, "a .safetensors or .ckpt file, a model folder, rank folders, or a strategy file", is_path=True
    )
    filter: str | None = option(None, "show the names that match this pattern, such as *.bias")
    limit: int = option(200, "most tensors shown; all are counted", minimum=0)
    digests: bool = option(False, "compute the SHA-256 of every tensor, and compare it with digests.json")
    format: str = option("text", "text or json", choices=("text", "json"))
    verbose: bool = option(False, "show tracebacks")

    @property
    def wants_verbose(self) -> bool:
        return self.verbose
