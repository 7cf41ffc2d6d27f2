"""systemd: unit files for the daemon, and readiness notification."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
from collections.abc import Mapping
from typing import Literal

Scope = Literal["user", "system"]

_UNIT = """\
[Unit]
Description=cotenant, shares the GPUs of this machine among jobs
Documentation=man:systemd.service(5)
After={after}

[Service]
Type=notify
ExecStart={command}
Restart=on-failure
RestartSec=2
# Only the daemon is stopped: the jobs' processes stay, and the next daemon adopts them.
KillMode=process
Delegate=yes
OOMScoreAdjust=-500
LimitNOFILE=65536
{settings}
[Install]
WantedBy={target}
"""


def unit_text(scope: Scope, *, python: str = sys.executable) -> str:
    """A unit that starts the daemon of this installation.

    The system unit runs as root, with its socket in /run/cotenant and its state in /var/lib/cotenant.
    """
    command = [python, "-m", "cotenant", "daemon"]
    if scope == "user":
        return _UNIT.format(after="default.target", command=shlex.join(command), settings="", target="default.target")
    settings = (
        "RuntimeDirectory=cotenant\n"
        "RuntimeDirectoryMode=0755\n"
        "RuntimeDirectoryPreserve=yes\n"
        "StateDirectory=cotenant\n"
        "StateDirectoryMode=0711\n"
    )
    return _UNIT.format(
        after="network.target nvidia-persistenced.service",
        command=shlex.join([*command, "--all-users"]),
        settings=settings,
        target="multi-user.target",
    )


def notify_systemd(state: str, env: Mapping[str, str] = os.environ) -> bool:
    """Send `READY=1` or `STOPPING=1` to systemd; returns False if systemd did not start this process.

    Source: sd_notify(3); a datagram to the socket of $NOTIFY_SOCKET, where `@` stands for an abstract name.
    """
    address = env.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return False
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), address.replace("@", "\0", 1) if address.startswith("@") else address)
        return True
    return False
