"""What LLM, AsyncLLM and DecodingParams say of wrong options, all faults at once."""

from mindbatch import LLM, DecodingParams
from mindbatch.io.errors import MindBatchError

TRIALS = [
    lambda: LLM("nowhere", batch_size=0, dtype="float17", cache_memory="lots", block_size=12, kernels="fast"),
    lambda: LLM("shipped:examples/tiny_gpt2", model_type="lama", seq_length=99999),
    lambda: LLM("shipped:examples/tiny_gpt2", dtype="float16"),
    lambda: LLM("shipped:examples/tiny_gpt2", batchsize=3),
    lambda: DecodingParams(temperature=-1, top_p=2, top_k=-3, num_beams=0, stop=[""]),
    lambda: DecodingParams(num_beams=3, num_beam_groups=2, penalty_alpha=0.5, do_sample=True),
    lambda: DecodingParams(max_new_tokens="many", regex="(", min_new_tokens=5, max_length=True),
    lambda: DecodingParams(top_q=1),
]
for trial in TRIALS:
    try:
        print("accepted:", trial())
    except (MindBatchError, TypeError, ValueError) as error:
        print(f"{type(error).__name__}: {error}")
