"""Jobs of `cotenant pack` in a task of a real Ray, which gives it a GPU and starts it again when a node is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import ray_clusters
from pack_folders import PackFolder
from places import until

TIMEOUT_S = 120


def missing():
    return ray_clusters.why_no_ray()


class Case:
    adopts = False
    after_node_loss = "COMPLETED"

    def __init__(self, root, first):
        self.root = root
        self.env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self._pack = PackFolder(root, first)
        self._stack = contextlib.ExitStack()
        node = {"num_cpus": 2, "num_gpus": 1}
        self._cluster = self._stack.enter_context(ray_clusters.ray_cluster(node, node))
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self):
        import ray

        root, words = str(self.root), self._pack.words

        @ray.remote(num_gpus=1, max_retries=3)
        def pack():
            import subprocess
            import sys
            import uuid
            from pathlib import Path

            (Path(root) / "node").write_text(ray.get_runtime_context().get_node_id())
            (Path(root) / "jobs.pack").mkdir(exist_ok=True)
            with (Path(root) / "jobs.pack" / f"{uuid.uuid4().hex}.out").open("wb") as log:
                command = [sys.executable, "-m", "cotenant", "pack", "--here", *words]
                return subprocess.run(command, cwd=root, stdout=log, stderr=log, check=False).returncode

        self._task = pack.remote()
        self.client = self._pack.client_of(until)

    def crash(self):
        import ray

        os.kill(self.client.status()["pid"], signal.SIGKILL)
        assert ray.get(self._task, timeout=TIMEOUT_S) != 0
        self._begin()

    def lose_node(self):
        node_id = (self.root / "node").read_text()
        (lost,) = (node for node in self._cluster.worker_nodes if node.node_id == node_id)
        self._cluster.remove_node(lost, allow_graceful=False)

    def ended(self):
        return self._pack.ended()

    def close(self):
        self._stack.close()
