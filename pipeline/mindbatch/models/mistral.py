"""mistral: Llama's shape with 8 key/value heads by default and a sliding window on every layer."""

from mindbatch.models import llama
from mindbatch.models.sizes import same_windows

MODEL = llama.relative(windows=same_windows)
