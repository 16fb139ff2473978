"""A Ray cluster of several nodes on this machine, for drivers in other processes.

Prints the cluster's address once it is there. A line `add` starts another node and `remove` kills the last
one, each with a line as the answer; the end of standard input ends the cluster.
"""

import sys

import ray.cluster_utils

CPUS, STORE_BYTES = 2, 80 << 20


def main(num_nodes: int) -> None:
    """Serves until standard input ends."""
    cluster = ray.cluster_utils.Cluster()
    nodes = [_node(cluster) for _ in range(num_nodes)]
    print(cluster.address, flush=True)
    for command in sys.stdin:
        if command.strip() == "add":
            nodes.append(_node(cluster))
        else:
            cluster.remove_node(nodes.pop(), allow_graceful=False)
        print("done", flush=True)
    cluster.shutdown()


def _node(cluster: ray.cluster_utils.Cluster) -> object:
    """Of each node only one actor may have the resource `place`."""
    return cluster.add_node(num_cpus=CPUS, resources={"place": 1}, object_store_memory=STORE_BYTES)


if __name__ == "__main__":
    main(int(sys.argv[1]))
