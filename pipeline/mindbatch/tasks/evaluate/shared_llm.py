"""The model of several columns of an evaluation, loaded when the first of them has anything to run."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path

from mindbatch.io.closing import Closing
from mindbatch.llm import LLM
from mindbatch.loading.build import Notice
from mindbatch.loading.providers import OpenedFolder, open_model
from mindbatch.run.batch_config import BatchConfig
from mindbatch.run.identity import replica_of
from mindbatch.tasks.evaluate.columns import Column, run_config
from mindbatch.tasks.evaluate.schema import EvaluateConfig
from mindbatch.tasks.loading_line import LoadingLine


class SharedLLM(Closing):
    """A model with the adapters of all columns, beside each other."""

    def __init__(
        self, config: EvaluateConfig, column: Column, home: Path, notice: Notice | None = None
    ) -> None:
        """column: any of those that share the model. home: the folder of the evaluation.

        notice: shows what takes time while the model is loaded; None: a line of its own on the terminal.
        """
        self._config, self._column, self._home, self._notice = config, column, home, notice
        self._llm: LLM | None = None

    @cached_property
    def opened(self) -> OpenedFolder:
        """Its folder, opened once for the fingerprints of all runs and for loading."""
        return open_model(self._config_of_run.model, replica_of(self._config_of_run.parallel).part_of(0))

    @cached_property
    def _config_of_run(self) -> BatchConfig:
        made = run_config(self._config, self._column, Path(), self._home, is_scored=False)
        return replace(made, lora=self._config.lora)

    def close(self) -> None:
        """Closes the model, if it was loaded."""
        if self._llm is not None:
            self._llm.close()

    @property
    def llm(self) -> LLM:
        """The model, which is loaded here when it is first asked for."""
        if self._llm is None:
            logs = self._home / "logs"
            with LoadingLine(shown=self._notice is None) as line:
                notice = self._notice or line
                self._llm = LLM.from_config(self._config_of_run, notice, logs, self.opened)
        return self._llm
