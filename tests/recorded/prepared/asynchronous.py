"""AsyncLLM: several requests at once, and one that is cut short."""

import asyncio

from mindbatch import AsyncLLM


async def main() -> None:
    """Prints texts in the order of the requests."""
    async with AsyncLLM("shipped:examples/tiny_gpt2") as llm:
        first = llm.generate(["three plus four is", "9 + 8 ="], max_new_tokens=20)
        second = llm.generate("An increasing sequence: one,", max_new_tokens=8, do_sample=True, seed=5)
        for result in sum(await asyncio.gather(first, second), []):
            print(result.prompt, "|", result.outputs[0].text)
        async for event in llm.stream("Even numbers: two,"):
            print(event.text, end="")
            break
        print()
        try:
            await llm.generate("")
        except Exception as error:
            print(type(error).__name__, error)


asyncio.run(main())
