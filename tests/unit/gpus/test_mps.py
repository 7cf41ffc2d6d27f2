"""Control daemons of MPS: ours are started, limited, watched and ended; those of others are never spoken to."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

import fake_mps
from cotenant.core.errors import BackendError
from cotenant.core.units import GiB
from cotenant.gpus.mps import MpsServers, MpsState

UUID = "GPU-0a8f0f2e-1111-2222-3333-444455556666"
OTHER = "GPU-9b7e1d3c-aaaa-bbbb-cccc-ddddeeeeffff"
UID = os.geteuid()


@pytest.fixture
def control(tmp_path, monkeypatch):
    """A folder with the program, first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    fake_mps.put(folder)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


@pytest.fixture
def place():
    """A folder with a short name: sockets have a longest path."""
    with tempfile.TemporaryDirectory(prefix="mps-") as name:
        yield Path(name)


@pytest.fixture
def servers(control, place):
    return MpsServers(place)


def notes(control):
    path = control / "notes"
    return path.read_text().splitlines() if path.exists() else []


def pipe_of(servers, uuid=UUID):
    return Path(servers.client_env(uuid, UID)["CUDA_MPS_PIPE_DIRECTORY"])


def test_a_client_gets_the_pipe_folder_and_its_limits(servers, place):
    env = servers.client_env(UUID, UID, memory_limit_bytes=3 * GiB, thread_percent=62.5)
    home = place / f"0a8f0f2e-1111-{UID}"
    assert env == {
        "CUDA_MPS_PIPE_DIRECTORY": str(home / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(home / "log"),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "62.5",
    }
    assert stat.S_IMODE((home / "pipe").stat().st_mode) == 0o700


def test_a_client_has_no_limits_by_default(servers):
    assert set(servers.client_env(UUID, UID)) == {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"}


def test_one_control_daemon_for_each_gpu(servers, control):
    for uuid in (UUID, UUID, OTHER):
        servers.client_env(uuid, UID)
    assert [note for note in notes(control) if note.startswith("start")] == [
        f"start {UUID} {UID}",
        f"start {OTHER} {UID}",
    ]
    assert servers.running() == {(UUID, UID), (OTHER, UID)}


def test_a_control_daemon_is_known_after_a_restart(servers, control, place):
    servers.client_env(UUID, UID)
    later = MpsServers(place)
    assert later.running() == {(UUID, UID)}
    later.client_env(UUID, UID)
    assert len([note for note in notes(control) if note.startswith("start")]) == 1


def test_a_control_daemon_that_ended_is_restarted(servers):
    (pipe_of(servers) / "control").unlink()
    assert servers.running() == set()
    servers.client_env(UUID, UID)
    assert servers.running() == {(UUID, UID)}


@pytest.mark.parametrize(
    ("listed", "state", "faulted"),
    [
        ("", {}, False),
        ("71 ACTIVE\n", {71: "ACTIVE"}, False),
        ("71 FAULT\n72 ACTIVE\n", {71: "FAULT", 72: "ACTIVE"}, True),
        ("71 unknown\n", {71: None}, False),
    ],
)
def test_state_of_servers_and_faults(servers, listed, state, faulted):
    (pipe_of(servers) / "servers").write_text(listed)
    found = servers.state(UUID, UID)
    assert (found, found.faulted) == (MpsState(is_running=True, servers=state), faulted)


def test_state_of_a_control_daemon_that_was_never_started(servers, control):
    assert servers.state(UUID, UID) == MpsState(is_running=False, servers={})
    assert notes(control) == []


def test_unused_control_daemons_are_ended(servers, control, place):
    for uuid in (UUID, OTHER):
        servers.client_env(uuid, UID)
    servers.stop_all_but({(OTHER, UID)})
    assert servers.running() == {(OTHER, UID)}
    assert f"quit 0a8f0f2e-1111-{UID}" in notes(control)
    assert [path.name for path in place.iterdir()] == [f"9b7e1d3c-aaaa-{UID}"]


def test_a_control_daemon_that_does_not_quit_is_retried(servers):
    busy = pipe_of(servers) / "busy"
    busy.touch()
    servers.stop_all_but(set())
    assert servers.running() == {(UUID, UID)}
    busy.unlink()
    servers.stop_all_but(set())
    assert servers.running() == set()


def test_the_default_pipe_folder_is_never_contacted(servers, control):
    servers.client_env(UUID, UID)
    servers.stop_all_but(set())
    assert {note.split()[1] for note in notes(control) if not note.startswith("start")} == {f"0a8f0f2e-1111-{UID}"}


def test_a_control_daemon_that_does_not_start_is_an_error_with_its_output(servers, control):
    (control / "broken").touch()
    with pytest.raises(BackendError, match="already running"):
        servers.client_env(UUID, UID)


def test_mps_that_is_not_installed_is_an_error(place):
    servers = MpsServers(place / "mps", command="no-such-control")
    assert not servers.available
    with pytest.raises(BackendError, match="there is no `no-such-control`"):
        servers.client_env(UUID, UID)


def test_a_folder_too_long_for_a_socket_is_refused(control, tmp_path):
    with pytest.raises(BackendError, match="too long for a socket"):
        MpsServers(tmp_path / ("x" * 100)).client_env(UUID, UID)


@pytest.mark.skipif(UID != 0, reason="only root may start one for somebody else")
def test_the_control_daemon_runs_as_the_jobs_user(servers, control, tmp_path, place):
    control.chmod(0o777)
    for path in (place, tmp_path, *tmp_path.parents):
        if path.stat().st_uid == UID and not path.stat().st_mode & 0o001:
            path.chmod(0o755)
    (control / "notes").touch()
    (control / "notes").chmod(0o666)
    servers.client_env(UUID, 65534)
    assert f"start {UUID} 65534" in notes(control)
    assert (place / "0a8f0f2e-1111-65534" / "pipe").stat().st_uid == 65534
