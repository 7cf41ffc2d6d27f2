"""Two real users, each with a pilot of their own, on one Slurm: neither sees or touches what is the other's."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path

from cotenant.simserver.server import SimulatedServer
from gated_jobs import GATE, lines
from people import made_users, needs_users, open_to_users
from places import until
from slurm_sites import end_site, pilot_on_slurm

pytestmark = needs_users


@contextlib.contextmanager
def site_of(cluster, account, gpus):
    """The started daemon of a user, whose pilot gets one of the two GPUs of the node n1."""
    root = Path(account.pw_dir) / "s"
    root.mkdir()
    words = {"sbatch": "--gres=gpu:1 -w n1", "launcher": f"env COTENANT_SIM_SERVER={gpus}", "max_allocations": 1}
    site = open_to_users(pilot_on_slurm(cluster, root, **words))
    os.chown(root, account.pw_uid, account.pw_gid)
    site.command = as_user(account, *site.command)
    site.env["HOME"] = account.pw_dir
    try:
        yield site.start(simulate=None)
    finally:
        end_site(site)


def as_user(account, *command):
    return ("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--init-groups", *command)


def gpus_of(site):
    """UUIDs of the GPUs that a daemon lists."""
    done = site.cli("gpus", "--json")
    assert done.returncode == 0, done.stderr
    return {gpu["uuid"] for gpu in json.loads(done.stdout)["gpus"]}


def submitted(site):
    """The file of a new job in its user's folder, which is open once `.open` is there."""
    path = site.root / "runs"
    done = site.cli("submit", "--parsable", "--gpu-mem", "30G", "--wrap", GATE.format(path))
    assert done.returncode == 0, done.stderr
    return path


def test_two_users_see_and_touch_only_their_own(cluster):
    gpus = cluster.work / "gpus"
    SimulatedServer.create(gpus, "2xA100-40GB", time_scale=60)
    with contextlib.ExitStack() as stack:
        accounts = ann, ben = stack.enter_context(made_users(2))
        stack.callback(cluster.clear)
        sites = [stack.enter_context(site_of(cluster, account, gpus)) for account in accounts]
        paths = [submitted(site) for site in sites]
        for path, account in zip(paths, accounts, strict=True):
            until(lambda path=path: lines(path), "it runs")
            assert Path(f"/proc/{lines(path)[0]}").stat().st_uid == account.pw_uid
        # Each has one GPU, though the driver of the node lists both.
        (anns,), (bens,) = map(gpus_of, sites)
        assert {anns, bens} == set(SimulatedServer.open(gpus).uuids)

        (allocation,) = cluster.slurm("squeue", "-h", "-u", ann.pw_name, "-o", "%A").split()
        refused = cluster.plain(*as_user(ben, "scancel", allocation), env={})
        assert "Access/permission denied" in refused.stderr
        other = subprocess.run(
            as_user(ben, *sites[0].command[4:], "ls"), env=sites[0].env, capture_output=True, text=True, check=False
        )
        assert other.returncode != 0, other.stdout

        # A daemon that begins anew finds its own allocation, and gives back its own.
        sites[1].kill()
        sites[1].start(simulate=None)
        Path(f"{paths[1]}.open").touch()
        assert sites[1].cli("wait", "1").returncode == 0
        sites[1].stop()
        until(lambda: not cluster.slurm("squeue", "-h", "-u", ben.pw_name).strip(), "it is given back")
        assert cluster.state(allocation) == "RUNNING"
        Path(f"{paths[0]}.open").touch()
        assert sites[0].cli("wait", "1").returncode == 0
        assert [(len(lines(path)), lines(Path(f"{path}.ends"))) for path in paths] == [(1, ["end"])] * 2
