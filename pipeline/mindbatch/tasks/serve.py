"""`mindbatch serve`: the model behind OpenAI's API, with batches that are runs."""

from mindbatch.io.moving_bar import LoadingLine
from mindbatch.llm import LLM
from mindbatch.loading.providers import open_model
from mindbatch.run.identity import replica_of
from mindbatch.server.schema import ServeConfig
from mindbatch.server.serving import bound_socket, hide_keys, serve


def run(config: ServeConfig) -> int:
    """Runs the task; returns the exit code."""
    hide_keys(config)
    bound = bound_socket(config)
    opened = open_model(config.model, replica_of(config.parallel).part_of(0))
    with LoadingLine() as line:
        llm = LLM.from_config(config, line, opened=opened)
    if config.decoding.max_length is None and config.decoding.max_new_tokens is None:
        # Clients expect answers as long as the model gives them.
        vars(config.decoding).update(max_length=llm.most_tokens)
    return serve(config, llm, opened, bound)
