"""The keys of `mindbatch runs`."""

import dataclasses
from pathlib import Path
from typing import ClassVar

from mindbatch.config.paths import folder_error, page_error, resolved
from mindbatch.config.schema import TaskConfig, excludes, option
from mindbatch.fields import kinds as kind
from mindbatch.ledger.run_folder import RunFolder

GENERATOR = "mindbatch runs"
"""Name of the generator in the head of a page."""


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
    report: str | None = option(
        None,
        "file for a page (HTML) on the run in `folder`",
        is_path=True,
        needs=(excludes("watch", True), excludes("format", "json")),
    )
    verbose: bool = option(False, "show tracebacks")

    @property
    def is_private(self) -> bool:
        return self.report is not None  # the page has prompts and outputs

    def resolve_paths(self) -> list[str]:
        errors: list[str] = []
        self.folder = resolved("folder", self.folder, folder_error, errors) or self.folder
        self.report = resolved("report", self.report, page_error(GENERATOR), errors)
        if self.report is not None and not errors and not RunFolder(Path(self.folder)).holds_a_run:
            errors.append(f"report: {self.folder} is no folder of a run (it has no run.json); give one")
        return errors
