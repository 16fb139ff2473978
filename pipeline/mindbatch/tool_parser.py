"""The flags of a tool, whose complaints go through the gate to the terminal."""

import argparse
import sys
from typing import NoReturn

from mindbatch.errors import EXIT_USAGE
from mindbatch.screen_text import say


class ToolParser(argparse.ArgumentParser):
    """argparse's parser; what a user typed is shown as `screen_text` shows it."""

    def error(self, message: str) -> NoReturn:
        """Prints usage and fault, and ends the process."""
        self.print_usage(sys.stderr)
        say(f"error: {message}", name=self.prog)
        self.exit(EXIT_USAGE)
