"""The process in which the ranks of a replica find each other: MindSpore's scheduler of a dynamic cluster."""


def main() -> None:
    """Serves the ranks that the environment names, until they have ended; see `world_variables`."""
    from mindspore.communication import init

    from mindbatch.parallel.context import initialise

    initialise("CPU")
    init()
