"""The command line of lm-evaluation-harness, which knows the model `mindbatch` here."""

import sys

if __name__ == "__main__" and not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
    del sys.path[0]  # the current folder, as in mindbatch/__main__.py

from mindbatch.io.errors import EXIT_USAGE, MindBatchError
from mindbatch.io.installation import missing
from mindbatch.io.screen_text import run_tool, say
from mindbatch.lm_eval import MODEL


def main() -> int:
    """Runs the command line; returns the exit code."""
    try:
        from lm_eval.__main__ import cli_evaluate
        from lm_eval.api.registry import model_registry
    except ModuleNotFoundError:
        say(missing("lm_eval"))
        return EXIT_USAGE
    model_registry.register(MODEL, target="mindbatch.lm_eval.model:MindBatchLM")
    try:
        cli_evaluate()
    except MindBatchError as error:
        say(*error.lines)
        return error.exit_code
    return 0


if __name__ == "__main__":
    run_tool(main, "mindbatch.lm_eval")
