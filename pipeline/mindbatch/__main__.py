"""The process of the command `mindbatch`, and of `python -m mindbatch`."""

import sys

if __name__ == "__main__" and not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
    del sys.path[0]  # the current folder, which Python has put there: nothing of it is executed

import gc
import os
from typing import NoReturn

from mindbatch.io.interrupts import interrupt_outcome, signal_notes
from mindbatch.io.screen_text import say, watch_streams


def start() -> NoReturn:
    """The console script: answers signals before what takes long to import."""
    watch_streams()
    try:
        signal_notes.install()
        gc.disable()  # until the task begins: what is imported and composed stays
        from mindbatch.cli import entry_point
    except BaseException:
        if signal_notes.came is None:
            raise
        text, code = interrupt_outcome(signal_notes.came)
        say(text)
        sys.stderr.flush()
        os._exit(code)
    entry_point()


if __name__ == "__main__":
    start()
