"""Paths of the socket, the state and the configuration. Source: XDG base directory specification."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from cotenant.core.errors import NotPermitted

SYSTEM_SOCKET = Path("/run/cotenant/sock")
SYSTEM_STATE = Path("/var/lib/cotenant")


def socket_path(env: Mapping[str, str] = os.environ) -> Path:
    """The socket for clients: `$COTENANT_SOCKET`, else the user's own if it exists, else the machine's if it exists.

    The user's own is `cotenant/sock` in `$XDG_RUNTIME_DIR`, or in a folder of the user in /tmp.
    """
    if named := env.get("COTENANT_SOCKET"):
        return Path(named).absolute()
    own = own_socket_path(env)
    return SYSTEM_SOCKET if not own.exists() and SYSTEM_SOCKET.exists() else own


def serving_path(users: str, env: Mapping[str, str] = os.environ) -> Path:
    """Default socket of a daemon that serves `own` or `all` users."""
    if named := env.get("COTENANT_SOCKET"):
        return Path(named).absolute()
    return SYSTEM_SOCKET if users == "all" else own_socket_path(env)


def own_socket_path(env: Mapping[str, str] = os.environ) -> Path:
    """The socket of a daemon that serves one user."""
    if runtime := env.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "cotenant" / "sock"
    return Path("/tmp") / f"cotenant-{os.getuid()}" / "sock"  # noqa: S108 (`private_folder` checks the owner)


def state_dir(env: Mapping[str, str] = os.environ) -> Path:
    """`cotenant` in `$XDG_STATE_HOME`, by default `~/.local/state`."""
    return _home(env, "XDG_STATE_HOME", ".local/state") / "cotenant"


def config_files(env: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Configuration files, later ones over earlier ones; they need not exist.

    The first is the machine's, in `$COTENANT_SYSTEM_CONFIG` or else in /etc/cotenant: tests name a folder that is not
    there, so that they do not depend on the machine.
    """
    machine = Path(env.get("COTENANT_SYSTEM_CONFIG") or "/etc/cotenant").absolute()
    return (machine / "config.toml", _home(env, "XDG_CONFIG_HOME", ".config") / "cotenant" / "config.toml")


def _home(env: Mapping[str, str], variable: str, default: str) -> Path:
    value = env.get(variable, "")
    # The XDG specification says to ignore relative paths.
    return Path(value) if value.startswith("/") else Path(env.get("HOME") or "~").expanduser() / default


def private_folder(path: Path, *, mode: int = 0o700) -> Path:
    """Create the folder `path` and its parents, without write permission for others; one that exists loses it.

    Raises:
        NotPermitted: as `own_folder`.
    """
    own_folder(path, mode=mode)
    if stat.S_IMODE(path.stat().st_mode) & ~mode:
        path.chmod(mode)
    return path


def own_folder(path: Path, *, mode: int = 0o700) -> Path:
    """Create the folder `path` and its parents; one that exists stays as it is: another daemon may be using it.

    Raises:
        NotPermitted: it, or a link in its place, belongs to another user. In /tmp another user could have made it, to
            read what is written there. Or it is /tmp itself, or alike: root would take it from all users.
    """
    hint = "remove it, or choose another with --socket and --state-dir"
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except FileExistsError:
        if not path.is_symlink():
            raise
        raise NotPermitted(f"`{path}` is a link to `{path.readlink()}`, where no folder is", hint=hint) from None
    made_by, found = path.lstat().st_uid, path.stat()
    owner = found.st_uid if made_by in (os.getuid(), 0) else made_by  # a link of theirs leads to a larger disk
    if owner != os.getuid():
        raise NotPermitted(f"`{path}` belongs to uid {owner}, not to you (uid {os.getuid()})", hint=hint)
    if found.st_mode & stat.S_ISVTX:
        own = path / "cotenant"
        raise NotPermitted(
            f"`{path}` is a folder that all users share", hint=f"use one of the daemon's own, such as {own}"
        )
    return path
