"""mt5: T5 v1.1 over many languages, with other defaults."""

from __future__ import annotations

from dataclasses import replace

from mindbatch.models import t5

# Of transformers' MT5Config.
DEFAULTS = {
    **t5.DEFAULTS,
    "vocab_size": 250112,
    "d_ff": 1024,
    "num_layers": 8,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}

MODEL = replace(t5.MODEL, defaults=DEFAULTS)
