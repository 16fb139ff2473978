"""The keys of `mindbatch runs`."""

import dataclasses
from typing import ClassVar

from mindbatch.config.paths import folder_error, resolved
from mindbatch.config.schema import TaskConfig, excludes, option
from mindbatch.fields import kinds as kind


@dataclasses.dataclass
class RunsConfig(TaskConfig):
    """The keys of `mindbatch runs`."""

    positional: ClassVar[tuple[str, ...]] = ("folder",)

    folder: str = option(".", "folder to search for runs, or of one", is_path=True)
    format: str = option("text", "text or json", kind.choice("text", "json"))
    watch: bool = option(
        False,
        "follow the runs that are running until they end; as --watch",
        needs=(excludes("format", "json"),),
    )
    verbose: bool = option(False, "show tracebacks")

    def resolve_paths(self) -> list[str]:
        errors: list[str] = []
        self.folder = resolved("folder", self.folder, folder_error, errors) or self.folder
        return errors
