"""The units, by systemd's own check where there is one, and the word that the daemon is ready."""

from __future__ import annotations

import configparser
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cotenant.cli.main import main
from cotenant.daemon import systemd


@pytest.fixture
def listener():
    """A datagram socket and a folder with a short name for it."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(30)
        yield receiver, Path(folder) / "notify"


def test_notifies_a_socket_path(listener):
    receiver, path = listener
    receiver.bind(str(path))
    assert systemd.notify_systemd("READY=1", {"NOTIFY_SOCKET": str(path)})
    assert receiver.recv(100) == b"READY=1"


def test_notifies_an_abstract_socket(listener):
    receiver, path = listener
    receiver.bind(f"\0{path}")
    assert systemd.notify_systemd("READY=1", {"NOTIFY_SOCKET": f"@{path}"})
    assert receiver.recv(100) == b"READY=1"


@pytest.mark.parametrize(
    "env", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:1"}, {"NOTIFY_SOCKET": "/no/such"}]
)
def test_notify_without_a_listener_is_ignored(env):
    assert not systemd.notify_systemd("READY=1", env)


@pytest.mark.parametrize("scope", ["user", "system"])
def test_the_unit_file_starts_this_daemon(scope, capsys):
    assert main(["daemon", "unit", f"--{scope}"]) == 0
    text = capsys.readouterr().out
    parsed = configparser.ConfigParser()
    parsed.read_string(text)
    service = parsed["Service"]
    assert (service["Type"], service["KillMode"], service["Delegate"]) == ("notify", "process", "yes")
    assert service["ExecStart"].startswith(f"{sys.executable} -m cotenant daemon")
    assert service["ExecStart"].endswith("--all-users") is (scope == "system")
    assert parsed["Install"]["WantedBy"] == {"user": "default.target", "system": "multi-user.target"}[scope]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
@pytest.mark.parametrize("scope", ["user", "system"])
def test_systemd_verifies_the_unit_file(scope, tmp_path):
    unit = tmp_path / "cotenant.service"
    unit.write_text(systemd.unit_text(scope).replace("Documentation=man:systemd.service(5)\n", ""))
    done = subprocess.run(
        ["systemd-analyze", f"--{scope}", "verify", str(unit)], capture_output=True, text=True, check=False, timeout=120
    )
    assert [line for line in (done.stdout + done.stderr).splitlines() if "cotenant.service" in line] == []
