"""LLM as its users call it: several kinds of prompts and parameters, streams, a bad prompt."""

from mindbatch import LLM, DecodingParams, PromptError

with LLM("shipped:examples/tiny_gpt2", batch_size=2, block_size=8) as llm:
    prompts = ["three plus four is", [24, 221, 11, 221, 23, 308], "An increasing sequence: one,"]
    params = [
        DecodingParams(max_new_tokens=5),
        {"do_sample": True, "seed": 3, "logprobs": 1},
        {"num_beams": 2},
    ]
    for result in llm.generate(prompts, params, max_new_tokens=6):
        for output in result.outputs:
            print(result.prompt, result.prompt_token_ids, output.text, output.token_ids, output.finish_reason)
            print(output.cumulative_logprob, output.logprobs)
    print("".join(event.text for event in llm.stream("9 + 8 =")))
    for result in llm.generate(["", "1 + 2 ="], on_error="record"):
        print(result.error, [output.text for output in result.outputs])
    try:
        llm.generate(["1 + 2 =", "", [99999]])
    except PromptError as error:
        print(type(error).__name__, error)
    samples = {"num_return_sequences": 2, "top_k": 3, "do_sample": True, "stop": [" seven"]}
    (two,) = llm.generate("An increasing sequence: one, two, three, four, five,", samples, max_new_tokens=4)
    print([output.text for output in two.outputs])
try:
    llm.generate("x")
except Exception as error:
    print(type(error).__name__, error)
