"""seed_oss: Llama's shape with a head size of its own, and biases of query, key and value."""

from mindbatch.models import llama

MODEL = llama.relative(qkv_bias="attention_bias", output_bias="attention_out_bias", mlp_bias="mlp_bias")
