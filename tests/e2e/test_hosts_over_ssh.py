"""An agent that ssh starts on a real sshd of this machine, with a connection that breaks."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cotenant.demo.slurm_cluster import free_ports
from gated_jobs import GATE, lines
from host_sites import hosts_site
from places import until
from slurm_sites import end_site

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
pytestmark = pytest.mark.skipif(
    SSHD is None or os.geteuid() != 0, reason="needs root and sshd (Debian: openssh-server)"
)
CONFIG = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile {folder}/pid
PasswordAuthentication no
PermitRootLogin yes
StrictModes no
UsePAM no
"""


@pytest.fixture
def ssh(tmp_path_factory):
    """The words that reach an sshd of the test's own by a key of its own."""
    folder = tmp_path_factory.mktemp("sshd")
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (port,) = free_ports(1)
    (folder / "config").write_text(CONFIG.format(port=port, folder=folder))
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # for its privilege separation
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "config"], stderr=log)
    options = "-o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -F none"
    try:
        yield f"ssh -p {port} -i {folder}/key {options} 127.0.0.1"
    finally:
        server.terminate()
        server.wait(60)


@pytest.fixture
def site(ssh, tmp_path_factory):
    site = hosts_site(tmp_path_factory.mktemp("h"), {"n1": ssh})
    site.start(simulate=None)
    try:
        until(site.client.gpus, "the host is heard of")
        yield site
    finally:
        end_site(site)


def connections(site):
    """Clients of ssh that reach the site's host."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "comm").read_text() == "ssh\n" and site.mark.encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def test_jobs_survive_their_connection_and_their_agent(site):
    path = site.root / "runs"
    job_id = site.submit(GATE.format(path))
    until(lambda: lines(path), "it runs")
    (before,) = connections(site)
    os.kill(before, 9)
    until(lambda: connections(site) not in ([], [before]), "it is connected again")
    assert site.wait(site.submit("exit 3"))["exit_code"] == 3
    path.with_name("runs.open").touch()
    assert site.wait(job_id)["state"] == "COMPLETED"
    assert (len(lines(path)), lines(path.with_name("runs.ends"))) == (1, ["end"])
