"""A GPU backend of another distribution: two GPUs that exist on paper."""

from __future__ import annotations

from cotenant.core.gpu import Gpu, GpuProcess, GpuSample

ENTRY_POINTS = {"cotenant.gpu_backends": {"acme": "acme_gpu_backend:AcmeBackend"}}
MEMORY_BYTES = 8 * 2**30


class AcmeBackend:
    name = "acme"

    def __init__(self, options):
        self.lost, self.held = set(), {}

    def inventory(self):
        return tuple(Gpu(uuid=f"ACME-{i}", index=i, name="Acme 8GB", memory_total_bytes=MEMORY_BYTES) for i in range(2))

    def sample(self, at_s):
        found = {}
        for gpu in self.inventory():
            if gpu.uuid not in self.lost:
                own = tuple(GpuProcess(pid=p, used_bytes=b) for p, (u, b) in self.held.items() if u == gpu.uuid)
                found[gpu.uuid] = GpuSample(at_s=at_s, used_bytes=sum(p.used_bytes for p in own), processes=own)
        return found

    def close(self):
        pass
