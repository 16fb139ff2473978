"""Small models of all shapes, for hypothesis."""

from hypothesis import strategies as st

from mindbatch.architecture.tensor_spec import TensorSpec
from mindbatch.model_spec.registry import describe, tensor_specs
from small_configs import EXPERTS, GPT2, LLAMA


def llama_specs(
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 2,
    width: int = 24,
    vocabulary: int = 11,
    layers: int = 2,
    tied: bool = False,
    model_type: str = "llama",
) -> list[TensorSpec]:
    config = LLAMA | {
        "model_type": model_type,
        "vocab_size": vocabulary,
        "hidden_size": 6,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "tie_word_embeddings": tied,
    }
    return tensor_specs(describe(config | EXPERTS.get(model_type, {})))


def gpt2_specs(heads: int = 4, head_dim: int = 2, vocabulary: int = 11, layers: int = 2) -> list[TensorSpec]:
    config = GPT2 | {
        "vocab_size": vocabulary,
        "n_embd": heads * head_dim,
        "n_layer": layers,
        "n_head": heads,
        "n_positions": 5,
    }
    return tensor_specs(describe(config))


@st.composite
def models(draw: st.DrawFn) -> list[TensorSpec]:
    """Specs of a model that can be cut into 1, 2, 3, 4, 6 or 8 slices, or into some of these."""
    heads = draw(st.sampled_from([1, 2, 4, 6, 8, 12, 24]))
    vocabulary, layers = draw(st.integers(1, 40)), draw(st.integers(1, 4))
    if draw(st.booleans()):
        return gpt2_specs(heads, draw(st.integers(1, 3)), vocabulary, layers)
    kv_heads = draw(st.sampled_from([size for size in (1, 2, 3, 4, 6, 8, 12, 24) if heads % size == 0]))
    model_type = draw(st.sampled_from(["gemma", "llama", "qwen2", "qwen3", "mistral"]))
    return llama_specs(heads, kv_heads, 2, 24, vocabulary, layers, draw(st.booleans()), model_type)
