"""The keys of `mindbatch compare`."""

from dataclasses import dataclass
from typing import ClassVar

from mindbatch.config.model_schema import RuntimeConfig
from mindbatch.config.paths import new_folder_error, resolved, run_folder_error
from mindbatch.config.schema import option, private_option, section
from mindbatch.fields import kinds as kind
from mindbatch.tasks.generate.schema import PromptTaskConfig


@dataclass
class CompareRuntimeConfig(RuntimeConfig):
    """The device and its memory."""

    prefix_caching: bool = option(
        False, "keep prompts in the cache; true favours the strategies that run after the first"
    )


PAGE, CONFIG = "comparison.html", "comparison.config.yaml"
FILES = ("results.json", PAGE, CONFIG)


@dataclass
class CompareOutputConfig:
    """The folder of the comparison, and what is printed."""

    dir: str | None = option(
        None, "folder for results.json, comparison.html and the texts; null: only print", is_path=True
    )
    overwrite: bool = option(False, "overwrite an earlier comparison in output.dir")
    format: str = option(
        "text", "form of the printed page: text, or json as in results.json", kind.choice("text", "json")
    )
    private: bool = private_option()


@dataclass
class CompareConfig(PromptTaskConfig):
    """The keys of `mindbatch compare`. `decoding` has what all its strategies have in common."""

    listed_group: ClassVar[str] = "decoding"
    listed_options: ClassVar[tuple[str, ...]] = (
        "greedy",
        "beam4",
        "group_beam",
        "contrastive",
        "top_k",
        "top_p",
        "temperature",
        "sample_and_rank",
    )

    runtime: CompareRuntimeConfig = section(CompareRuntimeConfig)
    output: CompareOutputConfig = section(CompareOutputConfig)
    limit: int = option(5, "number of prompts whose texts are printed; the files have all", kind.count())
    warm_up: bool = option(
        True, "first run each strategy on a few prompts, so that tokens/s does not count first steps"
    )
    timings: int | None = option(
        None,
        "timed runs of each strategy, in turns; null: 3, or 1 if that takes a minute",
        kind.count(1),
    )

    @property
    def is_private(self) -> bool:
        return self.output.private

    def resolve_paths(self) -> list[str]:
        errors = super().resolve_paths()
        error_of = run_folder_error if self.output.overwrite else new_folder_error(*FILES)
        self.output.dir = resolved("output.dir", self.output.dir, error_of, errors)
        return errors
