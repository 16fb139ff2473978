"""The flags of a tool, whose complaints go through the gate to the terminal."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from mindbatch.errors import EXIT_USAGE
from mindbatch.screen_text import say


class ToolParser(argparse.ArgumentParser):
    """argparse's parser; what a user typed is shown as `screen_text` shows it."""

    @classmethod
    def of_page(cls, name: str, page: str | None) -> ToolParser:
        """The parser of a tool whose help is a page, as it is laid out; flags have their whole names."""
        formatter = argparse.RawDescriptionHelpFormatter
        return cls(prog=name, description=page, formatter_class=formatter, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Prints usage and fault, and ends the process."""
        self.print_usage(sys.stderr)
        say(f"error: {message}", name=self.prog)
        self.exit(EXIT_USAGE)
