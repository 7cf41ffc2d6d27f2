"""Contract case of the `nvml` backend: two GPUs of a fake driver."""

from __future__ import annotations

import sys

from cotenant.gpus import create
from fake_pynvml import FakeDriver, FakeGpu


class Case:
    def __init__(self, monkeypatch, _folder):
        self.gpus = [FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b")]
        monkeypatch.setitem(sys.modules, "pynvml", FakeDriver(*self.gpus))
        self.backend = create("nvml")

    def hold(self, pid, size_bytes):
        self.gpus[1].processes = [(pid, size_bytes)]
        self.gpus[1].free_bytes = self.gpus[1].total_bytes - size_bytes

    def lose(self):
        self.gpus[0].broken.add("*")
