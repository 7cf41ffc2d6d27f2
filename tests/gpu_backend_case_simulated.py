"""Contract case of the `simulated` backend: a simulated server with two GPUs."""

from __future__ import annotations

import os

from cotenant.core.units import GiB
from cotenant.gpus import BackendOptions, create
from cotenant.simserver.server import SimulatedServer


class Case:
    def __init__(self, _monkeypatch, folder):
        self.server = SimulatedServer.create(folder, "2xH100-80GB")
        self.backend = create("simulated", BackendOptions(simulated_dir=folder))

    def hold(self, pid, size_bytes):
        assert pid == os.getpid()
        attached = self.server.attach(self.server.uuids[1], context_bytes=GiB)
        attached.allocate(size_bytes - GiB)

    def lose(self):
        self.server.set_failed(self.server.uuids[0], failed=True)
