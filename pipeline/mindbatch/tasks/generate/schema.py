"""The keys of `mindbatch generate`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from mindbatch.config.path_faults import new_files_fault, output_file_fault, settled
from mindbatch.config.paths import SAVED_BESIDE
from mindbatch.config.schema import SchemaKeys, option, section
from mindbatch.tasks.prompt_task import PromptTaskConfig


@dataclass
class OutputConfig:
    """Where the generations go."""

    format: str = option("text", "text, or json with token ids and timings", choices=("text", "json"))
    file: str | None = option(None, "file to write; null: standard output", is_path=True)
    overwrite: bool = option(False, "write over output.file if it is there")


@dataclass
class GenerateConfig(PromptTaskConfig):
    """The keys of `mindbatch generate`."""

    uses_one_decoding: ClassVar[bool] = True
    advises_sampling: ClassVar[bool] = True
    last_input: ClassVar[str] = "messages=... or interactive=true"

    output: OutputConfig = section(OutputConfig)
    stream: bool = option(False, "print the text token by token")
    interactive: bool = option(False, "keep asking for prompts")

    def given_inputs(self) -> list[str]:
        return super().given_inputs() + (["interactive"] if self.interactive else [])

    def settle_paths(self) -> list[str]:
        faults = super().settle_paths()
        fault_of = output_file_fault if self.output.overwrite else new_files_fault(SAVED_BESIDE)
        self.output.file = settled("output.file", self.output.file, fault_of, faults)
        return faults

    def run_faults(self, keys: SchemaKeys) -> Iterable[str]:
        yield from super().run_faults(keys)
        if self.interactive:
            yield from self._conversation_faults()
        if self.output.format == "json":
            for name in ("stream", "interactive"):
                if getattr(self, name):
                    yield (
                        f"{name}=true: cannot go with output.format=json, which is written when a row is done"
                    )

    def _conversation_faults(self) -> Iterator[str]:
        """What has no effect while the user is asked for prompts."""
        if self.output.file is not None:
            yield "output.file: has no effect with interactive=true, which answers on the screen; remove it"
        samples = self.decoding.num_return_sequences
        if samples > 1:
            yield (
                f"decoding.num_return_sequences={samples}: interactive=true gives one answer to each prompt; "
                "set it to 1"
            )
