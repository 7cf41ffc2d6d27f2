"""The sandbox refuses compiled code and other programs, too; in processes, since there is no way back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cotenant.tracing.sandbox import restrictions

WRITES = """
import sys
from cotenant.tracing.sandbox.restrictions import restrict_writes
if not restrict_writes([sys.argv[1], "/dev"]):
    sys.exit(77)
open(sys.argv[1] + "/inside", "w").close()
import subprocess
for path in sys.argv[1:3]:
    done = subprocess.run(["touch", path + "/by-program"], stderr=subprocess.DEVNULL)
    print(done.returncode == 0)
try:
    open(sys.argv[2] + "/outside", "w")
except PermissionError:
    print("refused")
"""
DEVICES = """
import sys
from cotenant.tracing.sandbox.restrictions import device_paths, restrict_writes
if not restrict_writes(device_paths(sys.argv[1])):
    sys.exit(77)
for name in ("null", "nvidiactl"):
    try:
        open(sys.argv[1] + "/" + name, "r+")
        print("opened")
    except PermissionError:
        print("refused")
"""
CALLS = """
import socket, subprocess, sys
from cotenant.tracing.sandbox.restrictions import restrict_calls
restrict_calls(programs=True, network=True, has_synthetic_data=len(sys.argv) > 1)
for act in (
    lambda: subprocess.run(["true"]),
    lambda: socket.create_connection(("192.0.2.1", 9), timeout=1),
    lambda: socket.getaddrinfo("example.org", 80),
    lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"", ("192.0.2.1", 9)),  # which looks no name up
):
    try:
        act()
        print("allowed")
    except OSError as error:
        print(type(error).__name__, error)
socket.getaddrinfo("127.0.0.1", 80)
"""


def test_no_code_writes_outside_the_writable_folders(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    command = [sys.executable, "-c", WRITES, str(inside), str(outside)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode == 77:
        pytest.skip("this kernel has no Landlock")
    assert done.stdout.split() == ["True", "False", "refused"], done.stderr
    assert list(outside.iterdir()) == []


def test_programs_and_connections_are_refused_with_the_option_that_allows_them():
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, check=True, timeout=60)
    program, address, name, packet = done.stdout.splitlines()
    assert program.startswith("PermissionError `true` is not started")
    assert "--no-sandbox" in program
    assert address.startswith("ConnectionError `192.0.2.1` is out of reach")
    assert "or use `--synthetic-data SHAPE`" in address
    assert name.startswith("ConnectionError `example.org` is out of reach")
    assert "--allow-network" in name
    assert packet.startswith("ConnectionError `('192.0.2.1', 9)` is out of reach")


def test_no_driver_opens_the_device_of_a_gpu(tmp_path):
    for name in ("null", "nvidiactl"):
        (tmp_path / name).touch()
    command = [sys.executable, "-c", DEVICES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode == 77:
        pytest.skip("this kernel has no Landlock")
    assert done.stdout.split() == ["opened", "refused"], done.stderr


@pytest.mark.parametrize("host", [None, "", b"", "localhost", "127.0.0.1", b"127.8.9.10", "::1", "0.0.0.0", "::"])
def test_this_machine_is_local(host):
    assert restrictions._is_local(host)


@pytest.mark.parametrize(
    "host", ["127.example.org", "127.0.0.1.example.org", "localhost.example.org", "192.0.2.1", "2001:db8::1", "127."]
)
def test_names_and_addresses_of_other_machines_are_not_local(host):
    assert not restrictions._is_local(host)


def test_synthetic_data_are_not_asked_for_again():
    command = [sys.executable, "-c", CALLS, "3x8x8"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "--synthetic-data" not in done.stdout
    assert "or make what it downloads available" in done.stdout
