"""Jobs of a daemon whose pilot asks a real Slurm for allocations."""

from __future__ import annotations

from cotenant.demo.slurm_cluster import why_no_cluster
from slurm_clusters import shared_cluster
from slurm_sites import SlurmCase, pilot_on_slurm


def missing():
    return why_no_cluster()


class Case(SlurmCase):
    after_node_loss = "COMPLETED"  # `first` asks to be requeued, and another allocation is requested

    def __init__(self, root, first):
        cluster = shared_cluster()
        site = pilot_on_slurm(cluster, root, max_allocations=1)
        # The keeper of a lost node is waited for, 30 s otherwise. One that lives touches its mark every 5 s.
        site.set_constant("cotenant.slurm.pilot_allocations", "SILENT_S", 12.0)
        site.start(simulate=None)
        super().__init__(root, cluster, site, site.submit(first, requeue=True))
