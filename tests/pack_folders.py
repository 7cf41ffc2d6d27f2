"""A pack of one job whose daemon takes more from a client."""

from __future__ import annotations

import json
import re

from cotenant.daemon.client import Client


class PackFolder:
    """The list, and what a pack writes of it; `words` are for `cotenant pack`."""

    words = ("--simulate", "2xA100-40GB", "--policy-options", "warmup_s=0", "--margin", "0:04", "jobs.txt")

    def __init__(self, root, first):
        self._root = root
        (root / "first.sh").write_text(f"#!/bin/sh\n{first}\n")
        (root / "first.sh").chmod(0o755)
        (root / "jobs.txt").write_text("--gpu-mem 1G first.sh\n")
        self._seen = set()

    def client_of(self, until):
        """A client of the daemon of the pack that has started since the last call."""
        found = []

        def is_there():
            texts = [path.read_text() for path in self._root.glob("jobs.pack/*.out")]
            sockets = {name for text in texts for name in re.findall(r"cotenant ls --socket (\S+)", text)}
            found[:] = sockets - self._seen
            return bool(found)

        until(is_there, "the pack's daemon serves")
        self._seen.update(found)
        return Client(found[0])

    def ended(self):
        """State of the first job if it has ended for good."""
        for path in self._root.glob("jobs.pack/done-*.jsonl"):
            for line in path.read_text().splitlines():
                if line:
                    return json.loads(line)["state"]
        return None
