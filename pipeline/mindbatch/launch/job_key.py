"""The secret that all processes of a job have in common: made, or taken from the environment."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping

from mindbatch.io.errors import ConfigError
from mindbatch.io.screen_text import hide
from mindbatch.launch.rank_environment import KEY_BYTES

VARIABLE = "MINDBATCH_JOB_KEY"
HIDDEN = "(hidden)"
_KEY = re.compile(rf"[0-9a-fA-F]{{{2 * KEY_BYTES}}}")
_HOW = "export MINDBATCH_JOB_KEY=$(openssl rand -hex 32) once, and give it to every node"


def job_key(environment: Mapping[str, str], *, is_shared: bool) -> bytes:
    """The key of a job. It is never on a command line, in a file of a run, or in a message.

    is_shared: there are other nodes, which must have the same; a job on one node makes its own.

    Raises:
        ConfigError: a shared one is not set, or it is no key.
    """
    if not is_shared:
        return secrets.token_bytes(KEY_BYTES)
    text = environment.get(VARIABLE, "")
    if text:
        hide(text, HIDDEN)
    if not _KEY.fullmatch(text):
        what = "is not a key" if text else "is not set"
        raise ConfigError(
            f"{VARIABLE} {what}: the nodes of a job know each other by {2 * KEY_BYTES} hexadecimal digits "
            f"that nobody else has; {_HOW}"
        )
    return bytes.fromhex(text)
