"""The model of several columns of an evaluation, loaded when the first of them has anything to run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mindbatch.closing import Closing
from mindbatch.llm import LLM
from mindbatch.loading.build import Notice
from mindbatch.tasks.evaluate.columns import Column, run_config
from mindbatch.tasks.evaluate.schema import EvaluateConfig
from mindbatch.tasks.loading_line import LoadingLine


class LentModel(Closing):
    """A model with the adapters of all columns, beside each other."""

    def __init__(
        self, config: EvaluateConfig, column: Column, home: Path, notice: Notice | None = None
    ) -> None:
        """column: any of those that share the model. home: the folder of the evaluation.

        notice: shows what takes time while the model is loaded; None: a line of its own on the terminal.
        """
        self._config, self._column, self._home, self._notice = config, column, home, notice
        self._llm: LLM | None = None

    def close(self) -> None:
        """Closes the model, if it was loaded."""
        if self._llm is not None:
            self._llm.close()

    @property
    def llm(self) -> LLM:
        """The model, which is loaded here when it is first asked for."""
        if self._llm is None:
            made = run_config(self._config, self._column, Path(), self._home, is_scored=False)
            made = replace(made, lora=self._config.lora)
            with LoadingLine(shown=self._notice is None) as line:
                self._llm = LLM.from_config(made, self._notice or line, logs=self._home / "logs")
        return self._llm
