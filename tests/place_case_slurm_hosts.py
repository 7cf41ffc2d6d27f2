"""Jobs of a daemon with an agent on each of two nodes of a real Slurm, in allocations that were there before."""

from __future__ import annotations

from cotenant.demo.slurm_cluster import why_no_cluster
from slurm_clusters import shared_cluster
from slurm_sites import SlurmCase, all_heard_of, allocate, hosts_on_slurm


def missing():
    return why_no_cluster()


class Case(SlurmCase):
    after_node_loss = "LOST"

    def __init__(self, root, first):
        cluster = shared_cluster()
        site = hosts_on_slurm(cluster, root)
        site.start(simulate=None)
        all_heard_of(site, len(cluster.nodes))
        super().__init__(root, cluster, site, site.submit(first))

    def lose_node(self):
        """What ran there is known to have ended only once there is an agent on that node again."""
        node = super().lose_node()
        self._cluster.restore_node(node)
        allocate(self._cluster, node)
