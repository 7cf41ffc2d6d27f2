"""The contract's case for `acme`, as its distribution ships it."""

from __future__ import annotations

from cotenant.gpus import create


class Case:
    def __init__(self, monkeypatch, folder):
        self.backend = create("acme")

    def hold(self, pid, size_bytes):
        self.backend.held[pid] = ("ACME-1", size_bytes)

    def lose(self):
        self.backend.lost.add("ACME-0")
