"""Client of the daemon's HTTP API, on the unix socket or the network.

Standard library only: every command of the CLI imports it.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import sys
import urllib.parse
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotenant.core import errors
from cotenant.core.errors import CotenantError, DaemonUnreachable
from cotenant.daemon.config.paths import socket_path
from cotenant.daemon.remote_address import RemoteAddress, remote_from_env
from cotenant.daemon.unix_http import UnixConnection, UnixResponse

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

    from cotenant.core.job import Job

CHUNK_BYTES = 64 * 1024
MAX_PAGE = 2000
"""Jobs in one answer. The daemon makes it in 50 ms."""
STOPPED_AFTER_S = 1.5
"""A daemon that has not answered by then may be stopped."""
BULK_S = 300.0
"""Longest wait for the answer to a change of many jobs."""
POLL_S = 25.0
"""Longest duration of one request to `wait`; further ones follow."""


class Client:
    """Client of one daemon. Thread-safe: every call opens its own connection.

    All methods raise `DaemonUnreachable` if no daemon answers, and the daemon's own error otherwise
    (`NoSuchJob`, `UsageError`, `NotPermitted`, `JournalError`, ...). Job views are as in
    `daemon/api/views/job_views.py`.

    Without `socket_file` it is the daemon that `$COTENANT_HOST` names, or else the one on this machine.
    """

    def __init__(self, socket_file: Path | None = None, *, timeout_s: float = 30.0) -> None:
        self._remote: RemoteAddress | None = None if socket_file is not None else remote_from_env()
        self.socket_file = socket_file or socket_path()
        self._timeout_s = timeout_s

    @property
    def is_remote(self) -> bool:
        """Whether it uses the network."""
        return self._remote is not None

    def submit(self, jobs: Sequence[Mapping[str, Any]], *, dry_run: bool = False) -> list[dict[str, Any]]:
        """Queue `jobs` (fields of `JobSpec` without `user` and `uid`), all or none; returns their views.

        With `dry_run` nothing is queued: each view says what would happen.
        """
        answer = self._call("POST", "/v1/jobs", {"jobs": list(jobs), "dry_run": dry_run})
        return list(answer["jobs"])

    def jobs(self, *, active: bool = False, **filters: Any) -> list[dict[str, Any]]:
        """Views of all jobs, oldest first; `active`: unfinished ones only.

        Further filters are the fields of `daemon.api.queries.JobFilter`; None is no filter.
        """
        return list(self.overview(active=active, **filters)["jobs"])

    def overview(self, *, active: bool = False, **filters: Any) -> dict[str, Any]:
        """Like `jobs`: the views as `jobs`, and the number of all jobs by state as `counts`.

        A long list comes in pages, so that the daemon has time for others between them.
        """
        given = {"active": int(active), **{key: value for key, value in filters.items() if value is not None}}
        if given.keys() & {"limit", "max_waiting", "max_done"} or given.get("last", MAX_PAGE + 1) <= MAX_PAGE:
            return self._overview(given)
        last = given.pop("last", None)
        first = found = self._overview({**given, "limit": MAX_PAGE})
        jobs: deque[Any] = deque(found["jobs"], maxlen=last)
        while len(found["jobs"]) == MAX_PAGE:
            found = self._overview({**given, "limit": MAX_PAGE, "after": found["jobs"][-1]["id"]})
            jobs += found["jobs"]
        return {**first, "jobs": list(jobs)}

    def _overview(self, query: Mapping[str, Any]) -> dict[str, Any]:
        return self._call("GET", f"/v1/jobs?{urllib.parse.urlencode(query)}")

    def ids(self, refs: Sequence[str]) -> list[int]:
        """Resolve `17`, `17_3` and `17_[3-5]` to job ids; the id of an array stands for all of its tasks."""
        answer = self._call("GET", f"/v1/ids?{urllib.parse.urlencode({'refs': ','.join(refs)})}")
        return [int(job_id) for job_id in answer["ids"]]

    def records(self) -> list[Job]:
        """All jobs as `Job` objects; the environments of their specs are empty."""
        from cotenant.core.codec import decode  # half of what this module would take to import
        from cotenant.core.job import Job

        found = self._call("GET", "/v1/jobs?records=1")["jobs"]
        return [decode(Job, job) for job in found]

    def job(self, job_id: int) -> dict[str, Any]:
        """The view of one job, with its attempts."""
        return dict(self._call("GET", f"/v1/jobs/{job_id}")["job"])

    def explain(self, job_id: int) -> dict[str, Any]:
        """Why a job waits: `reason`, and `rejections` with `gpu`, `gpu_uuid`, `rule`, `reason`."""
        return dict(self._call("GET", f"/v1/jobs/{job_id}/explain"))

    def events(self, job_id: int) -> list[dict[str, Any]]:
        """The events of a job, oldest first: `at`, `event`, `cause`, `text` and `state` of each."""
        return list(self._call("GET", f"/v1/jobs/{job_id}/events")["events"])

    def change(
        self, verb: str, job_id: int, *, reason: str = "", fields: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Apply a verb of `daemon.job_verbs` to a job; returns its view right after.

        `reason` is saved with the event; `fields` are the new values of an update.
        """
        body = {**({"reason": reason} if reason else {}), **({} if fields is None else {"fields": dict(fields)})}
        return dict(self._call("POST", f"/v1/jobs/{job_id}/{verb}", body)["job"])

    def change_many(
        self, verb: str, refs: Sequence[str] | None = None, *, reason: str = "", **filters: Any
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Apply a verb to the jobs that `refs` name, or else to those that pass `filters` (as for `jobs`).

        Returns the views of the changed jobs, in the order of the changes, and the errors of the others, with `id`.
        """
        chosen = {"filters": filters} if refs is None else {"refs": list(refs)}
        answer = self._call("POST", "/v1/jobs/change", {"verb": verb, "reason": reason, **chosen}, timeout_s=BULK_S)
        return list(answer["jobs"]), list(answer["errors"])

    def signal(
        self, number: int, refs: Sequence[str] | None = None, *, target: str = "programs", **filters: Any
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Signal the processes of running jobs; see `core.ports.SignalTarget`. Jobs and answer as for `change_many`."""
        chosen = {"filters": filters} if refs is None else {"refs": list(refs)}
        answer = self._call("POST", "/v1/jobs/signal", {"signal": number, "target": target, **chosen}, timeout_s=BULK_S)
        return list(answer["jobs"]), list(answer["errors"])

    def prune(self, older_than_s: float, *, all_users: bool = False, dry_run: bool = False) -> dict[str, Any]:
        """Remove what jobs that ended before left on the daemon's disk; `jobs` and `bytes` say how much."""
        body = {"older_than_s": older_than_s, "all_users": all_users, "dry_run": dry_run}
        return self._call("POST", "/v1/prune", body, timeout_s=BULK_S)

    def update(self, job_id: int, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Change fields of the spec of a pending job."""
        return self.change("update", job_id, fields=fields)

    def requeue(self, job_id: int) -> dict[str, Any]:
        """Queue a finished job again, or stop and queue a running one."""
        return self.change("requeue", job_id)

    def cancel(self, job_id: int) -> dict[str, Any]:
        """Cancel a job."""
        return self.change("cancel", job_id)

    def hold(self, job_id: int, *, reason: str = "") -> dict[str, Any]:
        """Keep a queued job from starting."""
        return self.change("hold", job_id, reason=reason)

    def release(self, job_id: int) -> dict[str, Any]:
        """Let a held job start."""
        return self.change("release", job_id)

    def wait(self, job_id: int, *, until: str = "done", timeout_s: float | None = None) -> dict[str, Any]:
        """Wait until a job is `done` or has `started`, up to `timeout_s`; returns its view then."""
        left_s = timeout_s
        while True:
            poll_s = POLL_S if left_s is None else min(POLL_S, left_s)
            path = f"/v1/jobs/{job_id}/wait?until={until}&timeout_s={poll_s:g}"
            answer = self._call("GET", path, timeout_s=poll_s + self._timeout_s)
            if left_s is not None:
                left_s -= poll_s
            if answer["reached"] or (left_s is not None and left_s <= 0):
                return dict(answer["job"])

    def logs(
        self, job_id: int, *, stream: str = "stdout", follow: bool = False, attempt: int | None = None
    ) -> Iterator[bytes]:
        """The output of a job in pieces; with `follow`, until the job is over.

        `attempt`: one of its attempts; by default the newest, and with `follow` those that come after it as well.
        """
        query = {"stream": stream, "follow": int(follow), **({} if attempt is None else {"attempt": attempt})}
        path = f"/v1/jobs/{job_id}/logs?{urllib.parse.urlencode(query)}"
        connection, response = self._open("GET", path, None, None if follow else self._timeout_s)
        try:
            while piece := response.read1(CHUNK_BYTES):
                yield piece
        except _transport_errors() as error:
            raise self._unreachable(f"the connection to the daemon was lost ({error})") from error
        finally:
            connection.close()

    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs, with memory, activity and residents."""
        return list(self._call("GET", "/v1/gpus")["gpus"])

    def gpu_history(self, seconds: float) -> list[dict[str, Any]]:
        """The GPUs with their samples over the last `seconds` as `points`; see `gpus.timeseries`."""
        return list(self._call("GET", f"/v1/gpus/history?seconds={seconds:.3f}")["gpus"])

    def usage(self, by: str, **filters: Any) -> list[dict[str, Any]]:
        """Usage by `user`, or history by `workload`, of the jobs that pass `filters` (as for `jobs`)."""
        query = {"by": by, **{key: value for key, value in filters.items() if value is not None}}
        return list(self._call("GET", f"/v1/usage?{urllib.parse.urlencode(query)}")["usage"])

    def status(self) -> dict[str, Any]:
        """The daemon: version, pid, policy, backend, folders, numbers of jobs by state."""
        return dict(self._call("GET", "/v1/status"))

    def shutdown(self) -> dict[str, Any]:
        """Stop the daemon. Running jobs go on; the next daemon adopts them."""
        return dict(self._call("POST", "/v1/shutdown", {}))

    def create_token(self, **fields: Any) -> dict[str, Any]:
        """Create a token; its `text` cannot be read again. `fields`: `name`, `admin`, `lifetime_s`, `user`."""
        return dict(self._call("POST", "/v1/tokens", fields)["token"])

    def tokens(self) -> list[dict[str, Any]]:
        """The user's own tokens; all tokens for an admin."""
        return list(self._call("GET", "/v1/tokens")["tokens"])

    def revoke_token(self, token_id: str) -> dict[str, Any]:
        """Revoke a token; returns its view."""
        return dict(self._call("POST", f"/v1/tokens/{urllib.parse.quote(token_id, safe='')}/revoke", {})["token"])

    def _call(self, method: str, path: str, body: Any = None, *, timeout_s: float | None = None) -> dict[str, Any]:
        connection, response = self._open(method, path, body, timeout_s or self._timeout_s)
        try:
            answer = json.loads(response.read())
        except _transport_errors(ValueError) as error:
            raise self._unreachable(f"the daemon's answer broke off ({error})") from error
        finally:
            connection.close()
        return dict(answer)

    def _open(
        self, method: str, path: str, body: Any, timeout_s: float | None
    ) -> tuple[UnixConnection | HTTPConnection, UnixResponse | HTTPResponse]:
        """Send a request; returns the connection and the response, or raises the error in it."""
        remote = self._remote
        connection: UnixConnection | HTTPConnection
        connection = UnixConnection(self.socket_file, timeout_s) if remote is None else remote.connection(timeout_s)
        try:
            data = None if body is None else json.dumps(body).encode()
            headers = {"content-type": "application/json"} if data else {}
            # A broken pipe: the daemon answered before it read the request, e.g. that there are too many connections.
            with contextlib.suppress(BrokenPipeError):
                connection.request(method, path, data, headers if remote is None else {**headers, **remote.headers})
            if remote is None:
                _check_running(connection.sock)
            response = connection.getresponse()
            _raise_for(response)
            return connection, response
        except _transport_errors() as error:
            connection.close()
            raise self._unreachable(_why(error, f"`{self.socket_file if remote is None else remote.url}`")) from error
        except BaseException:
            connection.close()
            raise

    def _unreachable(self, message: str) -> DaemonUnreachable:
        if self._remote is not None:
            return DaemonUnreachable(message, hint="`cotenant daemon status` on that machine says where it listens")
        return DaemonUnreachable(message, hint="start one with: cotenant daemon")


def _check_running(connection: Any) -> None:
    """Wait for the answer for `STOPPED_AFTER_S`, then look whether the daemon can answer at all.

    Raises:
        DaemonUnreachable: its process is stopped, by SIGSTOP or a debugger.
    """
    if select.select([connection], [], [], STOPPED_AFTER_S)[0]:
        return
    # The process that called listen(2) (unix(7), SO_PEERCRED); 0 if it is in another pid namespace.
    (pid,) = struct.unpack_from("i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 (pathlib is not imported for it)
            state = file.read().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return
    if state in (b"T", b"t"):
        raise DaemonUnreachable(f"the daemon (pid {pid}) is stopped", hint=f"let it go on: kill -CONT {pid}")


def _transport_errors(*further: type[Exception]) -> tuple[type[Exception], ...]:
    """What a connection may raise, and `further`; `http.client` is loaded only for a remote daemon."""
    module = sys.modules.get("http.client")
    return (OSError, *further) if module is None else (OSError, module.HTTPException, *further)


def _why(error: Exception, where: str) -> str:
    if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
        return f"no daemon listens on {where}"
    if isinstance(error, (TimeoutError, BlockingIOError)):
        return f"the daemon on {where} does not answer"
    if isinstance(error, PermissionError):
        return f"the socket {where} may not be opened by you"
    return f"the daemon on {where} cannot be reached ({str(error) or type(error).__name__})"


def _raise_for(response: UnixResponse | HTTPResponse) -> None:
    if response.status >= 400:
        raise _error_in(response)


def _error_in(response: UnixResponse | HTTPResponse) -> CotenantError:
    """The error in a response, as the class that the daemon raised."""
    try:
        return error_of(json.loads(response.read())["error"])
    except (ValueError, KeyError, TypeError):
        return CotenantError(f"the daemon answered with status {response.status}")


def error_of(body: Mapping[str, Any]) -> CotenantError:
    """The error in an answer of the daemon, as the class that it raised.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    kind, message, hint = str(body["kind"]), str(body["message"]), body.get("hint")
    found: Any = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, CotenantError) and found.__init__ is CotenantError.__init__:
        return found(message, hint=hint)
    # A class with a constructor of its own, e.g. UnknownName, becomes the base class with the same exit code.
    by_code = {5: errors.NotPermitted, 4: errors.NoSuchJob, 2: errors.UsageError}
    return by_code.get(int(body.get("exit_code", 1)), CotenantError)(message, hint=hint)
