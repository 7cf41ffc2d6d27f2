"""Locks between processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from cotenant.osutil.locks import LockHeldError, hold_lock, locked, try_lock


def test_a_held_lock_names_its_holder_and_is_free_after_close(tmp_path):
    held = hold_lock(tmp_path / "lock")
    with pytest.raises(LockHeldError, match=f"process {os.getpid()} holds `{tmp_path}/lock`") as failure:
        hold_lock(tmp_path / "lock")
    assert failure.value.holder == str(os.getpid())
    os.close(held)
    os.close(hold_lock(tmp_path / "lock"))


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    code = "import sys; from cotenant.osutil.locks import hold_lock\n"
    code += "hold_lock(sys.argv[1]); print('held', flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(LockHeldError) as failure:
        hold_lock(tmp_path / "lock")
    assert failure.value.holder == str(holder.pid)
    holder.kill()
    holder.communicate()
    os.close(hold_lock(tmp_path / "lock"))


def test_a_lock_file_without_a_pid_is_held_by_an_unknown_process(tmp_path):
    with (tmp_path / "lock").open("w") as file:
        assert try_lock(file.fileno())
        with pytest.raises(LockHeldError) as failure:
            hold_lock(tmp_path / "lock")
    assert failure.value.holder == "unknown"


def test_try_lock_does_not_wait(tmp_path):
    with (tmp_path / "lock").open("w") as one, (tmp_path / "lock").open("w") as other:
        assert try_lock(one.fileno())
        assert not try_lock(other.fileno())


def test_locked_waits_for_the_holder(tmp_path):
    (tmp_path / "lock").touch()
    order, inside = [], threading.Event()

    def second():
        inside.wait(60)
        with locked(tmp_path / "lock"):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with locked(tmp_path / "lock"):
        inside.set()
        with (tmp_path / "lock").open() as other:
            assert not try_lock(other.fileno())
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_descriptor_is_not_inherited(tmp_path):
    held = hold_lock(tmp_path / "lock")
    assert not os.get_inheritable(held)
    os.close(held)
