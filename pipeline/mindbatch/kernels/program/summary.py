"""The head's product made to say what it knows of its logits: see csrc/summary.h."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mindbatch.kernels.native_weights import PANEL
from mindbatch.kernels.program.fusion import PRODUCT
from mindbatch.kernels.recording import ROWS, Recording, Symbol

HEAD = "mb_head"


def summarised(recording: Recording) -> Recording:
    """The recording of a head, with a summary [rows, 2, panels] of its logits as one more output.

    As it is where the logits are no product's: what is computed of one (caps, factors, other ranks' logits),
    changes what a summary says.
    """
    *before, last = recording.calls
    [*_, logits] = recording.outputs
    if not last.operation.startswith(PRODUCT) or last.outputs != (logits,):
        return recording
    summary = Symbol(recording, (ROWS, 2, -(-logits.shape[1] // PANEL)), np.dtype(np.float32))
    head = replace(last, operation=last.operation.replace(PRODUCT, HEAD), outputs=(logits, summary))
    return replace(recording, calls=[*before, head], outputs=[*recording.outputs, summary])
