"""A Ray cluster in a process of its own, `python ray_head.py FOLDER`: whoever is connected to a lost head is aborted.

It prints the address. `lose` on its stdin kills the head, `again` starts another one at the same address with a new
node; both are answered by `done`. It ends with its stdin.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

RECONNECT_S = 5
"""Ray's own is 60 s: until workers of a head that is gone end themselves."""


def main() -> None:
    os.environ.update({"RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_S)})
    from ray.cluster_utils import Cluster

    import ray_clusters
    from cotenant.demo.slurm_cluster import free_ports

    ray_clusters.set_environment()
    (port,) = free_ports(1)
    common = {"object_store_memory": 80 * ray_clusters.MiB}
    head = {"num_cpus": 1, "num_gpus": 0, "include_dashboard": False, "gcs_server_port": port, **common}
    (worker,) = ray_clusters.gpu_nodes(Path(sys.argv[1]), nodes=("r1",))
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(**common, **worker)
        print(cluster.address, flush=True)
        for line in sys.stdin:
            if line.strip() == "lose":
                cluster.remove_node(cluster.head_node, allow_graceful=False)
            else:
                cluster.add_node(**head)
                cluster.add_node(**common, **worker)
            print("done", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
