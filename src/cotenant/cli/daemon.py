"""`cotenant daemon`: start it, ask it, stop it."""

from __future__ import annotations

import json as _json
import os
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cotenant.cli.common import (
    Connection,
    LocalConnection,
    connection_options,
    local_connection_options,
)
from cotenant.cli.completion import complete_estimators, complete_policies, complete_server
from cotenant.cli.daemon_repair import command as repair
from cotenant.cli.options import cli_group, cli_option, flag, json_option, option, option_group
from cotenant.cli.output import emit_json, note
from cotenant.cli.parameter_types import PATH, number
from cotenant.core.errors import BackendError, CotenantError, DaemonUnreachable, UsageError
from cotenant.daemon.client import Client
from cotenant.daemon.config.paths import config_files, own_folder, serving_path

if TYPE_CHECKING:
    from cotenant.hosts.allocations import AllocationSource

STOP_TIMEOUT_S = 60.0
LOG_FILE = "daemon.log"
LOG_MODE = 0o640


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """Options of the configuration that the command line can set too."""

    simulate: str | None = option(
        "--simulate",
        metavar="GPUS",
        shell_complete=complete_server,
        help="Simulate a server instead, e.g. 4xA100-40GB.",
    )
    time_scale: float | None = option(
        "--time-scale", type=number(), metavar="X", help="Simulated seconds per second.  [default: 1]"
    )
    policy: str | None = option(
        "--policy",
        metavar="NAME",
        shell_complete=complete_policies,
        help="Policy that decides which job starts where; `cotenant simulate --list` lists them.",
    )
    backend: str | None = option("--backend", "--gpus", metavar="auto|nvml|simulated", help="Source of GPU readings.")
    tick_s: float | None = option(
        "--tick", type=number(), metavar="SECONDS", help="Time between readings of the GPUs.  [default: 1]"
    )
    estimator: str | None = option(
        "--estimator",
        metavar="NAME",
        shell_complete=complete_estimators,
        help="Estimator of jobs that declare no memory.",
    )
    state_dir: Path | None = option(
        "--state-dir", type=PATH, metavar="DIR", help="Folder of the journal and of the jobs' output."
    )
    config: Path | None = option(
        "--config", type=PATH, metavar="FILE", help="Read this configuration file instead of the usual ones."
    )
    all_users: bool = flag(
        "--all-users", help="Serve all users of this machine; each job runs as its user. Needs root."
    )
    web: str | None = option(
        "--web", metavar="ADDRESS:PORT", help="Serve the web page, e.g. on 127.0.0.1:7412; users log in with tokens."
    )
    log_level: str | None = option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")

    def load(self) -> Any:
        """The configuration with these options on top.

        Raises:
            UsageError: there is no such file, or a value is wrong.
        """
        from cotenant.daemon.config import loader

        if self.config is not None and not self.config.exists():
            raise UsageError(f"no file `{self.config}`", hint="see `cotenant config show --origin` for the usual ones")
        flags: dict[str, dict[str, Any]] = {
            "daemon": {
                "tick_s": self.tick_s,
                "state_dir": None if self.state_dir is None else str(self.state_dir.absolute()),
                "log_level": self.log_level,
            },
            "policy": {"name": self.policy},
            "gpus": {"backend": self.backend, "simulate": self.simulate, "time_scale": self.time_scale},
            "estimates": {"estimator": self.estimator},
            "web": {"listen": self.web},
            "access": {"users": "all" if self.all_users else None},
        }
        return loader.load(config_files() if self.config is None else (self.config,), os.environ, flags)


@cli_group(invoke_without_command=True)
@option_group("options", DaemonOptions)
@cli_option("--detach", is_flag=True, help="Return once the daemon answers; it logs to STATE_DIR/daemon.log.")
@json_option
@local_connection_options
@cli_option("--ready-fd", type=int, hidden=True)
@cli_option("--log-file", type=PATH, hidden=True)
@click.pass_context
def command(
    context: click.Context,
    options: DaemonOptions,
    *,
    detach: bool,
    json: bool,
    connection: LocalConnection,
    ready_fd: int | None,
    log_file: Path | None,
) -> None:
    """Start the daemon in the foreground, or with --detach in the background.

      cotenant daemon                            on the GPUs of this machine
      cotenant daemon --simulate 4xA100-40GB     on simulated ones, to try it out
      cotenant daemon --detach --policy best-fit
      cotenant daemon stop

    It ends on Ctrl-C or `daemon stop`. Running jobs continue without it, and the next daemon adopts them.

    Configuration: /etc/cotenant/config.toml, then ~/.config/cotenant/config.toml, then variables such as
    COTENANT_DAEMON__TICK_S, then these options. `cotenant config show` prints
    what holds without options.
    """
    if context.invoked_subcommand is not None:
        return
    config = options.load()
    socket = serving_path(config.access.users) if connection.socket is None else connection.socket.absolute()
    if detach:
        _detach(config, socket, json=json)
    else:
        _serve(config, socket, ready_fd, log_file)


def _serve(config: Any, socket: Path, ready_fd: int | None, log_file: Path | None) -> None:
    """Run the daemon in this process. `ready_fd` receives JSON when it serves, or with the reason why it cannot.

    `log_file`: what stderr is, if it is to be rotated.
    """
    from cotenant.daemon import log, systemd
    from cotenant.daemon.serve import serve

    log.set_up(config.daemon.log_level, file=log_file)

    def report(value: dict[str, Any]) -> None:
        if ready_fd is not None:
            os.write(ready_fd, _json.dumps(value).encode())
            os.close(ready_fd)

    def ready() -> None:
        report({"pid": os.getpid()})
        systemd.notify_systemd("READY=1")

    try:
        allocations = None
        if config.pilot.enabled:
            allocations = _allocations(config)
        serve(config, socket, on_ready=ready, allocations=allocations)
    except CotenantError as error:
        if ready_fd is not None:
            report({"kind": type(error).__name__, "message": error.message, "hint": error.hint})
        raise


def _allocations(config: Any) -> AllocationSource:
    """Where the pilot gets GPUs."""
    from cotenant.daemon.setup import pilot_folder, state_folder

    notes = pilot_folder(state_folder(config))
    if config.pilot.ray:
        from cotenant.ray import allocations as ray_allocations

        return ray_allocations.open_allocations(config.pilot.ray, notes, grace_s=config.scheduling.stop_grace_s)
    from cotenant.slurm import pilot_allocations

    return pilot_allocations.open_allocations(config.pilot.sbatch, notes)


def _detach(config: Any, socket: Path, *, json: bool) -> None:
    """Start the daemon in a session of its own and return once it answers."""
    from cotenant.daemon.log import warnings_of
    from cotenant.daemon.setup import state_folder, state_mode

    log = own_folder(state_folder(config), mode=state_mode(config)) / LOG_FILE
    read_end, write_end = os.pipe()
    arguments = [argument for argument in sys.argv[1:] if argument != "--detach"]
    # Names of jobs and users are in it, and with simulated GPUs all users may pass its folder: not for others to read.
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, LOG_MODE), "ab") as output:
        os.fchmod(output.fileno(), LOG_MODE)
        logged_bytes = output.tell()
        subprocess.Popen(
            [sys.executable, "-m", "cotenant", *arguments, "--ready-fd", str(write_end), "--log-file", str(log)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(write_end,),
            start_new_session=True,
        )
    os.close(write_end)
    with os.fdopen(read_end, "rb") as ready:
        answer = _json.loads(ready.read() or b"{}")
    if "pid" not in answer:
        message = answer.get("message", "the daemon ended before it answered")
        raise BackendError(message, hint=answer.get("hint") or f"see {log}")
    with log.open("rb") as written:
        written.seek(logged_bytes)
        for warning in warnings_of(written.read().decode(errors="replace")):
            note(f"warning: {warning}")
    if json:
        emit_json({"pid": answer["pid"], "socket": str(socket), "log": str(log)})
    else:
        print(f"daemon {answer['pid']} answers on {socket}; log: {log}")


@command.command("unit")
@cli_option("--system/--user", "is_system", default=False, help="For the whole machine, or for you.")
@json_option
def unit(*, is_system: bool, json: bool) -> None:
    """Print a systemd unit that starts the daemon of this installation.

    $ cotenant daemon unit --user > ~/.config/systemd/user/cotenant.service
    $ systemctl --user enable --now cotenant && loginctl enable-linger
    """
    from cotenant.daemon.systemd import unit_text

    text = unit_text("system" if is_system else "user")
    if json:
        emit_json({"unit": text})
        return
    print(text, end="")


@command.command("status")
@json_option
@connection_options
def status(*, json: bool, connection: Connection) -> None:
    """Print the daemon's version, policy, GPUs and number of jobs. Exit code 3 if no daemon answers.

    cotenant daemon status
    """
    answer = connection.client().status()
    if json:
        emit_json(answer)
        return
    jobs = ", ".join(f"{count} {name}" for name, count in answer["jobs"].items()) or "none"
    for title, value in (
        ("version", answer["version"]),
        ("pid", answer["pid"]),
        ("since", answer["started_at"]),
        ("policy", answer["policy"]),
        ("estimator", answer["estimator"] or "none"),
        ("sharing", ", ".join(answer["sharing_modes"])),
        ("GPUs", f"{answer['backend']} {answer['simulate'] or ''}".strip()),
        ("socket", answer["socket"]),
        ("network", answer["tcp"] or "off"),
        ("web page", answer["web"] or "off"),
        ("state", answer["state_dir"]),
        ("jobs", jobs),
    ):
        print(f"{title:<10} {value}")
    if answer["journal_error"]:
        note(f"warning: no job can be submitted or started: {answer['journal_error']}")


@command.command("stop")
@json_option
@connection_options
def stop(*, json: bool, connection: Connection) -> None:
    """Stop the daemon. Running jobs continue; the next daemon adopts them.

    cotenant daemon stop
    """
    client = connection.client()
    pid = client.shutdown()["pid"]
    if not client.is_remote:  # there, the pid is another machine's
        _wait_for_end(client, pid)
    if json:
        emit_json({"pid": pid})
    else:
        print(f"daemon {pid} {'is stopping' if client.is_remote else 'has stopped'}")


def _wait_for_end(client: Client, pid: int) -> None:
    """Wait until the process is gone.

    Raises:
        CotenantError: it still runs and answers after `STOP_TIMEOUT_S`.
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
    raise CotenantError(f"daemon {pid} still runs after {STOP_TIMEOUT_S:g} s", hint="see its log")


command.add_command(repair, "repair")
