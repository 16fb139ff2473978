"""mistral: Llama's shape with 8 key/value heads by default and a sliding window on every layer."""

from mindbatch.config_json.sizes import same_windows
from mindbatch.models import llama

MODEL = llama.relative(windows=same_windows)
