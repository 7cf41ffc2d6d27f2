"""`cotenant daemon`, `daemon status` and `daemon stop`."""

from __future__ import annotations

import json as _json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cotenant.cli.common import Json, Socket, new_client
from cotenant.cli.main import new_app
from cotenant.cli.output import emit_json, note
from cotenant.core.errors import BackendError, CotenantError, DaemonUnreachable, UsageError
from cotenant.daemon.client import Client
from cotenant.daemon.config.paths import config_files, private_folder, serving_path

STOP_TIMEOUT_S = 60.0
LOG_FILE = "daemon.log"

app = new_app(invoke_without_command=True)

Policy = Annotated[str | None, typer.Option("--policy", metavar="NAME", help="Who decides which job starts where.")]
Backend = Annotated[
    str | None, typer.Option("--backend", "--gpus", metavar="auto|nvml|simulated", help="Where GPUs are read.")
]
Simulate = Annotated[
    str | None, typer.Option("--simulate", metavar="CARDS", help="Simulate a server instead, e.g. 4xA100-40GB.")
]
TimeScale = Annotated[
    float | None, typer.Option("--time-scale", metavar="X", help="Simulated seconds in a second.  [default: 1]")
]
Tick = Annotated[
    float | None, typer.Option("--tick", metavar="SECONDS", help="Between two readings of the GPUs.  [default: 1]")
]
StateDir = Annotated[
    Path | None, typer.Option("--state-dir", metavar="DIR", help="Folder of the journal and the jobs' output.")
]
Estimator = Annotated[
    str | None, typer.Option("--estimator", metavar="NAME", help="Estimates the jobs that declare no memory.")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Read this file instead of the usual ones.")
]
AllUsers = Annotated[
    bool, typer.Option("--all-users", help="Serve everybody on this machine, their jobs as themselves. Needs root.")
]
LogLevel = Annotated[str | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")]
Detach = Annotated[bool, typer.Option("--detach", help="Return once it answers; it logs to STATE_DIR/daemon.log.")]
ReadyFd = Annotated[int | None, typer.Option("--ready-fd", hidden=True)]


@app.callback()
def start(
    context: typer.Context,
    *,
    simulate: Simulate = None,
    time_scale: TimeScale = None,
    policy: Policy = None,
    backend: Backend = None,
    tick: Tick = None,
    estimator: Estimator = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
    all_users: AllUsers = False,
    log_level: LogLevel = None,
    detach: Detach = False,
    json: Json = False,
    socket: Socket = None,
    ready_fd: ReadyFd = None,
) -> None:
    """Start the daemon, in the foreground unless told to --detach; or `status`, `stop`.

      cotenant daemon                            on the GPUs of this machine
      cotenant daemon --simulate 4xA100-40GB     on simulated ones, to try it out
      cotenant daemon --detach --policy best-fit
      cotenant daemon stop

    It ends on Ctrl-C or `daemon stop`. Jobs that run go on without it, and the next daemon adopts them.

    Configuration: /etc/cotenant/config.toml, then ~/.config/cotenant/config.toml, then variables such as
    COTENANT_DAEMON__TICK_S, then these options.
    """
    if context.invoked_subcommand is not None:
        return
    from cotenant.daemon.config import loader as layers

    flags: dict[str, dict[str, Any]] = {
        "daemon": {
            "tick_s": tick,
            "state_dir": None if state_dir is None else str(state_dir.absolute()),
            "log_level": log_level,
        },
        "policy": {"name": policy},
        "gpus": {"backend": backend, "simulate": simulate, "time_scale": time_scale},
        "estimates": {"estimator": estimator},
        "access": {"users": "all" if all_users else None},
    }
    if config is not None and not config.exists():
        raise UsageError(f"no file `{config}`", hint="see `cotenant config show --origin` for the usual ones")
    loaded = layers.load(config_files() if config is None else (config,), os.environ, flags)
    where = serving_path(loaded.access.users) if socket is None else socket.absolute()
    if detach:
        _detach(loaded, where, json=json)
        return
    _serve(loaded, where, ready_fd)


def _serve(config: Any, socket: Path, ready_fd: int | None) -> None:
    """Run the daemon here. Whoever waits at `ready_fd` is told when it serves, or why it cannot."""
    from cotenant.daemon import log, systemd
    from cotenant.daemon.serve import serve

    log.set_up(config.daemon.log_level)

    def tell(value: dict[str, Any]) -> None:
        if ready_fd is not None:
            os.write(ready_fd, _json.dumps(value).encode())
            os.close(ready_fd)

    def ready() -> None:
        tell({"pid": os.getpid()})
        systemd.notify_systemd("READY=1")

    try:
        serve(config, socket, on_ready=ready)
    except CotenantError as error:
        if ready_fd is not None:
            tell({"kind": type(error).__name__, "message": error.message, "hint": error.hint})
        raise


def _detach(config: Any, socket: Path, *, json: bool) -> None:
    """Start the daemon in a session of its own and return once it answers."""
    from cotenant.daemon.setup import state_folder

    log = private_folder(state_folder(config)) / LOG_FILE
    read_end, write_end = os.pipe()
    own = [each for each in sys.argv[1:] if each != "--detach"]
    with log.open("ab") as output:
        subprocess.Popen(
            [sys.executable, "-m", "cotenant", *own, "--ready-fd", str(write_end)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(write_end,),
            start_new_session=True,
        )
    os.close(write_end)
    with os.fdopen(read_end, "rb") as told:
        answer = _json.loads(told.read() or b"{}")
    if "pid" not in answer:
        message = answer.get("message", "the daemon ended before it answered")
        raise BackendError(message, hint=answer.get("hint") or f"see {log}")
    if json:
        emit_json({"pid": answer["pid"], "socket": str(socket), "log": str(log)})
    else:
        print(f"daemon {answer['pid']} answers on {socket}; log: {log}")


@app.command()
def unit(
    *,
    system: Annotated[bool, typer.Option("--system/--user", help="For the whole machine, or for you.")] = False,
    json: Json = False,
) -> None:
    """Print a systemd unit that starts the daemon of this installation.

    $ cotenant daemon unit --user > ~/.config/systemd/user/cotenant.service
    $ systemctl --user enable --now cotenant && loginctl enable-linger
    """
    from cotenant.daemon.systemd import unit_text

    text = unit_text("system" if system else "user")
    if json:
        emit_json({"unit": text})
        return
    print(text, end="")


@app.command()
def status(*, json: Json = False, socket: Socket = None) -> None:
    """Say what the daemon is and what it does. Exit code 3 if there is none."""
    told = new_client(socket).status()
    if json:
        emit_json(told)
        return
    jobs = ", ".join(f"{count} {name}" for name, count in told["jobs"].items()) or "none"
    for title, value in (
        ("version", told["version"]),
        ("pid", told["pid"]),
        ("since", told["started_at"]),
        ("policy", told["policy"]),
        ("estimator", told["estimator"] or "none"),
        ("sharing", ", ".join(told["sharing_modes"])),
        ("GPUs", f"{told['backend']} {told['simulate'] or ''}".strip()),
        ("socket", told["socket"]),
        ("network", told["tcp"] or "off"),
        ("state", told["state_dir"]),
        ("jobs", jobs),
    ):
        print(f"{title:<10} {value}")
    if told["journal_error"]:
        note(f"warning: nothing can be submitted or started: {told['journal_error']}")


@app.command()
def stop(*, json: Json = False, socket: Socket = None) -> None:
    """End the daemon. Jobs that run go on; the next daemon adopts them."""
    client = new_client(socket)
    pid = client.shutdown()["pid"]
    if not client.is_remote:  # there, the number is somebody else's
        _wait_for_end(client, pid)
    if json:
        emit_json({"pid": pid})
    else:
        print(f"daemon {pid} {'ends' if client.is_remote else 'has ended'}")


def _wait_for_end(client: Client, pid: int) -> None:
    """Until the process is gone.

    Raises:
        CotenantError: it is not after a minute.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return  # gone already
    try:
        ready, _, _ = select.select([descriptor], [], [], STOP_TIMEOUT_S)
    finally:
        os.close(descriptor)
    if ready:
        return
    try:
        client.status()
    except DaemonUnreachable:
        return
    raise CotenantError(f"daemon {pid} has not ended after {STOP_TIMEOUT_S:g} s", hint="see its log")
