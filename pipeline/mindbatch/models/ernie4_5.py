"""ernie4_5: Llama's shape with a head size of its own, and heads rotated in pairs of neighbours."""

from mindbatch.models import llama

MODEL = llama.relative(bias_key="use_bias", mlp_bias="use_bias", is_interleaved=True)
