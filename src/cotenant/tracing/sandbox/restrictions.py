"""Enforces the sandbox against any code: no write outside the scratch folder, and no network.

Landlock (Linux 5.13) guards files: a process restricts itself and its children for the rest of their lives, compiled
code included. Where the kernel has no Landlock, programs are not started. An audit hook of Python guards the network;
for compiled code the environment does (`trace_script`).
Source: Linux, Documentation/userspace-api/landlock.rst; include/uapi/linux/landlock.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# System calls of Landlock, the same numbers on every architecture; glibc has no functions for them.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_WRITES = 1 << 1 | 0x1FF0  # write a file; remove, make and so on, bits 4 to 12
_REFER, _TRUNCATE = 1 << 13, 1 << 14  # since versions 2 and 3
_FOR_FILES = 1 << 1 | _TRUNCATE
_PR_SET_NO_NEW_PRIVS = 38
_GPU_DEVICES = ("nvidia", "dri", "kfd", "dxg")
_PROGRAMS = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"})
_CONNECTS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_LOOKS_UP = "socket.getaddrinfo"


class _Below(ctypes.Structure):
    # `struct landlock_path_beneath_attr` is packed: 12 bytes, not 16.
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def restrict_writes(writable: Iterable[str]) -> bool:
    """Refuse this process all writes outside the folders `writable`; whether the kernel supports that."""
    kernel: Any = ctypes.CDLL(None, use_errno=True)
    version = _landlock_version(kernel)
    if version < 1:
        return False
    rights = _WRITES | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    wanted = ctypes.c_uint64(rights)
    rules = kernel.syscall(_CREATE_RULESET, ctypes.byref(wanted), ctypes.sizeof(wanted), 0)
    if rules < 0:
        return False
    try:
        for folder in writable:
            with contextlib.suppress(OSError):
                _allow(kernel, rules, folder, rights)
        # landlock_restrict_self(2) requires it without CAP_SYS_ADMIN: a set-user-ID program could undo the rules.
        return not kernel.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) and not kernel.syscall(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def has_landlock() -> bool:
    """Whether this kernel can guard files."""
    return _landlock_version(ctypes.CDLL(None, use_errno=True)) >= 1


def _landlock_version(kernel: Any) -> int:
    # With LANDLOCK_CREATE_RULESET_VERSION it returns the version of the interface, and makes no ruleset.
    return int(kernel.syscall(_CREATE_RULESET, None, 0, 1))


def device_paths(folder: str = "/dev") -> list[str]:
    """Devices that a traced script may write to: all but those of GPUs, so that no driver reaches a real one.

    NVIDIA's driver opens /dev/nvidiactl for reading and writing, whatever CUDA_VISIBLE_DEVICES says.
    """
    return [entry.path for entry in os.scandir(folder) if not entry.name.startswith(_GPU_DEVICES)]


def _allow(kernel: Any, rules: int, path: str, rights: int) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        below = _Below(rights if Path(path).is_dir() else rights & _FOR_FILES, folder)
        kernel.syscall(_ADD_RULE, rules, 1, ctypes.byref(below), 0)
    finally:
        os.close(folder)


def restrict_calls(*, programs: bool, network: bool, has_synthetic_data: bool = False) -> None:
    """Refuse to start programs, or to connect; the message says how to allow it. There is no way back.

    `has_synthetic_data`: the user gave some already.
    """
    instead = "make what it downloads available" if has_synthetic_data else "use `--synthetic-data SHAPE`"
    watched = (_PROGRAMS if programs else frozenset()) | ({*_CONNECTS, _LOOKS_UP} if network else frozenset())

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event not in watched:  # Python calls this for each `sys._getframe`, too
            return
        if event in _PROGRAMS:
            raise PermissionError(
                f"`{_command_text(args)}` is not started: this kernel cannot keep it from writing during a trace; "
                "estimate with `--no-sandbox` to allow it"
            )
        if event in _CONNECTS and _is_remote(args):
            raise ConnectionError(_no_network(str(args[-1]), instead))
        if event == _LOOKS_UP and not _is_local(args[0]):
            raise ConnectionError(_no_network(str(args[0]), instead))

    sys.addaudithook(hook)


def _no_network(where: str, instead: str) -> str:
    return (
        f"`{where}` is out of reach: a script has no network during a trace; allow it with `--allow-network`, or "
        f"{instead}"
    )


def _command_text(args: tuple[Any, ...]) -> str:
    first = args[0] if args else ""
    text = os.fsdecode(first) if isinstance(first, (str, bytes, os.PathLike)) else str(first)
    return text[:80]


def _is_remote(args: tuple[Any, ...]) -> bool:
    address = args[-1]
    return isinstance(address, tuple) and bool(address) and not _is_local(address[0])


def _is_local(host: Any) -> bool:
    """Whether a host is this machine. A name such as `127.example.org` is not, however it begins."""
    text = "" if host is None else os.fsdecode(host) if isinstance(host, (str, bytes)) else str(host)
    if text in {"", "localhost"}:
        return True
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
