"""Real users of this machine, made for a test run, and what they do at their terminals. Needs root and useradd."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from benchmarks._lib.public_python import public_python, python_path

TIMEOUT_S = 120

needs_users = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("useradd") is None, reason="needs root and useradd, to make users"
)


def open_to_users(site):
    """`site`, with its daemon and clients on a Python that other users may run; skips the test if there is none."""
    python = public_python()
    if python is None:
        pytest.skip("every Python with our packages is in a folder that only root may enter")
    site.command = (python, "-m", "cotenant")
    if python != sys.executable:
        site.env["PYTHONPATH"] = python_path()
    site.root.chmod(0o755)  # users reach the socket
    return site


def start_for_all(site, *flags, **options):
    """Start root's daemon for all users on `site`."""
    return site.start("--all-users", "--state-dir", str(site.root / "state" / "cotenant"), *flags, **options)


@contextlib.contextmanager
def made_users(count):
    """Accounts of `count` new users with homes and a common group, removed afterwards."""
    names = [f"cot{uuid.uuid4().hex[:8]}" for _ in range(count)]
    group = f"cog{uuid.uuid4().hex[:8]}"
    try:
        subprocess.run(["groupadd", group], check=True)
        for name in names:
            subprocess.run(["useradd", "-m", "-s", "/bin/sh", "-G", group, name], check=True, capture_output=True)
        yield [pwd.getpwnam(name) for name in names]
    finally:
        for name in names:
            with contextlib.suppress(KeyError):
                uid = pwd.getpwnam(name).pw_uid
                subprocess.run(["userdel", "-r", name], check=False, capture_output=True)
                assert uid != 0
        subprocess.run(["groupdel", group], check=False, capture_output=True)


class Person:
    """A user at a terminal, in their home. `env`: added to every command's environment."""

    def __init__(self, site, account, **env):
        self.site = site
        self.account = account
        self.name = account.pw_name
        self.uid = account.pw_uid
        self.home = Path(account.pw_dir)
        self.env = env

    def cli(self, *args, **options):
        return self.run(*self.site.command, *args, **options)

    def python(self, code, *args, **options):
        """Run the Python program `code` as the user, on the daemon's interpreter."""
        return self.run(self.site.command[0], "-c", code, *args, **options)

    def run(self, *command, **options):
        return subprocess.run(
            command,
            check=False,
            **{"capture_output": True, "text": True, "timeout": TIMEOUT_S, **self._rights(), **options},
        )

    def popen(self, *command, **options):
        """Start a command that goes on; its output is discarded unless `options` say otherwise."""
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(command, **{**quiet, **self._rights(), **options})

    def write(self, name, text):
        """A file of the user in their home, with its folders. One that is there may be executed: it is replaced."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.draft")
        draft.write_text(text)
        if path.exists():
            draft.chmod(path.stat().st_mode)
        draft.replace(path)
        for made in (path, *(folder for folder in path.parents if self.home in folder.parents)):
            os.chown(made, self.uid, self.account.pw_gid)
        return path

    def submit(self, *args):
        """Id of a new job with 1 GiB of declared memory."""
        done = self.cli("submit", "--parsable", "--gpu-mem", "1G", *args)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _rights(self):
        env = {
            "PATH": self.site.env["PATH"],
            "HOME": str(self.home),
            "COTENANT_SOCKET": str(self.site.socket),
            "COTENANT_TEST_MARK": self.site.mark,
            **{
                name: value for name, value in self.site.env.items() if name in ("PYTHONPATH", "COTENANT_SYSTEM_CONFIG")
            },
            **self.env,
        }
        return {
            "env": env,
            "cwd": self.home,
            "user": self.uid,
            "group": self.account.pw_gid,
            "extra_groups": os.getgrouplist(self.name, self.account.pw_gid),
        }
