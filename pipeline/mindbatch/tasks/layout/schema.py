"""The keys of `mindbatch layout`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from mindbatch.config.error_log import shown
from mindbatch.config.hub_models import resolve_model_paths
from mindbatch.config.launch_schema import world_size_of
from mindbatch.config.model_schema import ParallelConfig
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.config.paths import resolved, run_folder_error
from mindbatch.config.schema import SchemaKeys, needs, option, section
from mindbatch.fields import kinds as kind
from mindbatch.fields.field import Need

MAX_RANKS = 8192
_MINDFORMERS = needs("model.provider", "mindformers")
_MINDSPORE = Need(
    lambda config: config.compiles or config.asks_mindspore, "model.provider", _MINDFORMERS.remedy
)
_FILES = Need(lambda config: not config.compiles or config.layout.dir is not None, "layout.dir", "give it")


@dataclass
class LayoutConfig:
    """The strategy files; with model.provider=mindformers, how MindSpore cuts the model."""

    dir: str | None = option(
        None,
        "folder for MindSpore's strategy files, one for each pipeline stage; null: none are written",
        is_path=True,
    )
    replace: bool = option(
        False, "overwrite strategy files that have another layout", needs=(needs("layout.dir"),)
    )
    vocab_emb_dp: bool | None = option(
        None,
        "of MindFormers: keep embedding and head whole on every rank; null: true, as it does, and false for "
        "mindbatch compile, whose network cuts them",
        needs=(_MINDFORMERS, _FILES),
    )
    qkv_concat: bool = option(
        False,
        "query, key and value are one parameter, gate and up another, as the model's qkv_concat says",
        needs=(_MINDFORMERS,),
    )
    timeout: int = option(600, "seconds for MindSpore's compiler", kind.count(1), needs=(_MINDSPORE,))


@dataclass
class LayoutTaskConfig(ModelTaskConfig):
    """The keys of `mindbatch layout`."""

    used: ClassVar[frozenset[str]] = frozenset(
        {
            "layout",
            "model.checkpoint_name_or_path",
            "model.dtype",
            "model.ignore_config_keys",
            "model.mindformers_yaml",
            "model.provider",
            "model.type",
            "parallel.data_parallel",
            "parallel.model_parallel",
            "parallel.pipeline_stage",
            "report",
            "verbose",
        }
    )
    starts_processes: ClassVar[bool] = False
    verbose_key: ClassVar[str] = "verbose"
    compiles: ClassVar[bool] = False
    """True if graphs are compiled, too."""

    layout: LayoutConfig = section(LayoutConfig)
    report: str = option("text", "text or json", kind.choice("text", "json"))
    verbose: bool = option(False, "show tracebacks and the messages of MindSpore")

    @property
    def asks_mindspore(self) -> bool:
        """True if the layout is MindSpore's own, of a model of MindFormers."""
        return self.model.provider == "mindformers"

    def resolve_paths(self) -> list[str]:
        errors = resolve_model_paths(self.model)
        self.layout.dir = resolved("layout.dir", self.layout.dir, run_folder_error, errors)
        return errors

    def package_errors(self) -> Iterable[str]:
        return super().package_errors() if self.compiles or self.asks_mindspore else ()

    def run_errors(self, keys: SchemaKeys) -> Iterable[str]:
        yield from rank_errors(self.parallel)
        if self.asks_mindspore and not self.compiles and self.model.dtype != "auto":
            yield (
                f"model.dtype={shown(self.model.dtype)}: has no effect with model.provider=mindformers; "
                "remove it"
            )


def rank_errors(parallel: ParallelConfig) -> Iterator[str]:
    if (ranks := world_size_of(parallel)) > MAX_RANKS:
        yield (
            f"parallel: {ranks} ranks; at most {MAX_RANKS}. Copies of the model "
            "(parallel.data_parallel) hold the same slices: fewer of them say the same"
        )
