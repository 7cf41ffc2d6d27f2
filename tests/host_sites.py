"""A daemon whose GPUs are on other hosts: simulated servers, each with an agent of its own."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from cotenant.simserver.server import SimulatedServer
from sites import Site

AGENT = b"cotenant.hosts.agent"


def hosts_site(root, launchers, *, gpus="1xA100-40GB"):
    """A site, not started; `launchers` has for each host the words before the agent's own, as text."""
    site = Site(root)
    site.env["COTENANT_POLICY__OPTIONS__WARMUP_S"] = "0"
    site.env["XDG_CONFIG_HOME"] = str(root / "config")
    table = ["[hosts.agents]"]
    for number, (host, launcher) in enumerate(launchers.items()):
        folder = root / f"gpus-{host}"
        SimulatedServer.create(folder, gpus, time_scale=60, seed=number)
        set_env = f"env SLURMD_NODENAME={host} COTENANT_SIM_SERVER={folder}"
        table.append(f'{host} = "{launcher} {set_env}"')
    (root / "config" / "cotenant").mkdir(parents=True)
    (root / "config" / "cotenant" / "config.toml").write_text("\n".join(table) + "\n")
    return site


def agents(site):
    """Processes of agents, by the mark of their site; launchers are left out."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if words[1:3] == [b"-m", AGENT] and site.mark.encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def kill_agents(site, number=signal.SIGKILL):
    for pid in agents(site):
        with contextlib.suppress(ProcessLookupError):  # it was ending
            os.kill(pid, number)
