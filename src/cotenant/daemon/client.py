"""Talks to the daemon, over its socket or the network. Standard library only: every command imports this."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotenant.core import errors
from cotenant.core.errors import CotenantError, DaemonUnreachable
from cotenant.daemon.config.paths import socket_path

if TYPE_CHECKING:
    from cotenant.core.job import Job
from cotenant.daemon.remote_address import RemoteAddress, remote_from_env

CHUNK_BYTES = 64 * 1024
POLL_S = 25.0
"""Longest time that one request to `wait` stays open; the next one follows."""


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(str(self._path))
        except BaseException:
            self.sock.close()
            raise


class Client:
    """One daemon. Safe to use from several threads: every call has its own connection.

    All methods raise `DaemonUnreachable` if nobody answers, and the daemon's own error otherwise
    (`NoSuchJob`, `UsageError`, `NotPermitted`, `JournalError`, ...). Job views are as in `daemon/api/views.py`.

    Without `socket_file` it is the daemon that `$COTENANT_HOST` names, or else the one on this machine.
    """

    def __init__(self, socket_file: Path | None = None, *, timeout_s: float = 30.0) -> None:
        self._remote: RemoteAddress | None = None if socket_file is not None else remote_from_env()
        self.socket_file = socket_file or socket_path()
        self._timeout_s = timeout_s

    @property
    def is_remote(self) -> bool:
        """Whether it is asked over the network."""
        return self._remote is not None

    def submit(self, jobs: Sequence[Mapping[str, Any]], *, dry_run: bool = False) -> list[dict[str, Any]]:
        """Queue `jobs` (fields of `JobSpec` without `user` and `uid`), all or none; their views.

        With `dry_run` nothing is queued: each view says what would happen.
        """
        answer = self._call("POST", "/v1/jobs", {"jobs": list(jobs), "dry_run": dry_run})
        return list(answer["jobs"])

    def jobs(self, *, active: bool = False, **filters: Any) -> list[dict[str, Any]]:
        """Views of all jobs, oldest first; `active`: only those that are not over.

        Further filters are the fields of `daemon.calls.queries.Selection`; None is no filter.
        """
        return list(self.overview(active=active, **filters)["jobs"])

    def overview(self, *, active: bool = False, **filters: Any) -> dict[str, Any]:
        """As `jobs`: the views as `jobs`, and as `counts` how many there are of all by state."""
        query = {"active": int(active), **{key: value for key, value in filters.items() if value is not None}}
        return self._call("GET", f"/v1/jobs?{urllib.parse.urlencode(query)}")

    def ids(self, refs: Sequence[str]) -> list[int]:
        """The jobs meant by `17`, `17_3`, `17_[3-5]`; the id of an array means all of its tasks."""
        answer = self._call("GET", f"/v1/ids?{urllib.parse.urlencode({'refs': ','.join(refs)})}")
        return [int(each) for each in answer["ids"]]

    def records(self) -> list[Job]:
        """All jobs as the manager holds them; the environment of their specs is left empty."""
        from cotenant.core.codec import decode  # half of what this module would take to import
        from cotenant.core.job import Job

        found = self._call("GET", "/v1/jobs?records=1")["jobs"]
        return [decode(Job, each) for each in found]

    def job(self, job_id: int) -> dict[str, Any]:
        """The view of one job, with its attempts."""
        return dict(self._call("GET", f"/v1/jobs/{job_id}")["job"])

    def explain(self, job_id: int) -> dict[str, Any]:
        """Why it waits: `reason`, and `rejections` with `gpu`, `gpu_uuid`, `rule`, `reason`."""
        return dict(self._call("GET", f"/v1/jobs/{job_id}/explain"))

    def events(self, job_id: int) -> list[dict[str, Any]]:
        """What became of it: `at`, `event`, `cause`, `text` and `state` of every transition, oldest first."""
        return list(self._call("GET", f"/v1/jobs/{job_id}/events")["events"])

    def update(self, job_id: int, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Change fields of the spec of a job that waits; its view then."""
        return dict(self._call("POST", f"/v1/jobs/{job_id}/update", {"fields": dict(fields)})["job"])

    def requeue(self, job_id: int) -> dict[str, Any]:
        """Run a job again that is over, or stop and queue again one that runs."""
        return dict(self._call("POST", f"/v1/jobs/{job_id}/requeue", {})["job"])

    def cancel(self, job_id: int) -> dict[str, Any]:
        """Cancel a job; its view right after."""
        return dict(self._call("POST", f"/v1/jobs/{job_id}/cancel", {})["job"])

    def hold(self, job_id: int, *, reason: str = "") -> dict[str, Any]:
        """Keep a queued job from starting; who did it is kept with the reason."""
        return dict(self._call("POST", f"/v1/jobs/{job_id}/hold", {"reason": reason})["job"])

    def release(self, job_id: int) -> dict[str, Any]:
        """Let a held job start."""
        return dict(self._call("POST", f"/v1/jobs/{job_id}/release", {})["job"])

    def wait(self, job_id: int, *, until: str = "done", timeout_s: float | None = None) -> dict[str, Any]:
        """Wait until a job is `done`, or `started`; its view then, or as it is after `timeout_s`."""
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
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(f"the connection to the daemon was lost ({error})") from error
        finally:
            connection.close()

    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs, with memory, activity and residents."""
        return list(self._call("GET", "/v1/gpus")["gpus"])

    def gpu_history(self, seconds: float) -> list[dict[str, Any]]:
        """The GPUs with what was read of them over the last `seconds`, as `points`; see `gpus.history.Point`."""
        return list(self._call("GET", f"/v1/gpus/history?seconds={seconds:.3f}")["gpus"])

    def usage(self, by: str, **filters: Any) -> list[dict[str, Any]]:
        """What was used, by `user`, or known, by `work`, of the jobs that `filters` leave (as for `jobs`)."""
        query = {"by": by, **{key: value for key, value in filters.items() if value is not None}}
        return list(self._call("GET", f"/v1/usage?{urllib.parse.urlencode(query)}")["usage"])

    def status(self) -> dict[str, Any]:
        """The daemon: version, pid, policy, backend, folders, counts of jobs."""
        return dict(self._call("GET", "/v1/status"))

    def shutdown(self) -> dict[str, Any]:
        """Ask the daemon to end. Jobs that run go on; the next daemon adopts them."""
        return dict(self._call("POST", "/v1/shutdown", {}))

    def create_token(self, **fields: Any) -> dict[str, Any]:
        """A new token, with its `text`, which is told this once; `fields`: `name`, `admin`, `lifetime_s`, `user`."""
        return dict(self._call("POST", "/v1/tokens", fields)["token"])

    def tokens(self) -> list[dict[str, Any]]:
        """One's own tokens; an admin's are all."""
        return list(self._call("GET", "/v1/tokens")["tokens"])

    def revoke_token(self, token_id: str) -> dict[str, Any]:
        """Make a token worthless; what it was."""
        return dict(self._call("POST", f"/v1/tokens/{urllib.parse.quote(token_id, safe='')}/revoke", {})["token"])

    def _call(self, method: str, path: str, body: Any = None, *, timeout_s: float | None = None) -> dict[str, Any]:
        connection, response = self._open(method, path, body, timeout_s or self._timeout_s)
        try:
            answer = json.loads(response.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._unreachable(f"the daemon's answer broke off ({error})") from error
        finally:
            connection.close()
        return dict(answer)

    def _open(
        self, method: str, path: str, body: Any, timeout_s: float | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send a request; the connection and the answer, if it is no error."""
        remote = self._remote
        connection = _UnixConnection(self.socket_file, timeout_s) if remote is None else remote.connection(timeout_s)
        try:
            data = None if body is None else json.dumps(body).encode()
            headers = {"content-type": "application/json"} if data else {}
            connection.request(method, path, data, headers if remote is None else {**headers, **remote.headers})
            response = connection.getresponse()
            _raise_for(response)
            return connection, response
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._unreachable(_why(error, f"`{self.socket_file if remote is None else remote.url}`")) from error
        except BaseException:
            connection.close()
            raise

    def _unreachable(self, message: str) -> DaemonUnreachable:
        if self._remote is not None:
            return DaemonUnreachable(message, hint="`cotenant daemon status` on that machine says where it listens")
        return DaemonUnreachable(message, hint="start one with: cotenant daemon")


def _why(error: Exception, where: str) -> str:
    if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
        return f"no daemon listens on {where}"
    if isinstance(error, TimeoutError):
        return f"the daemon on {where} does not answer"
    if isinstance(error, PermissionError):
        return f"the socket {where} may not be opened by you"
    return f"the daemon on {where} cannot be reached ({str(error) or type(error).__name__})"


def _raise_for(response: http.client.HTTPResponse) -> None:
    if response.status >= 400:
        raise _error_in(response)


def _error_in(response: http.client.HTTPResponse) -> CotenantError:
    """The error that the daemon reported, as the class it was there."""
    try:
        body = json.loads(response.read())["error"]
        kind, message, hint = str(body["kind"]), str(body["message"]), body.get("hint")
    except (ValueError, KeyError, TypeError):
        return CotenantError(f"the daemon answered with status {response.status}")
    found: Any = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, CotenantError) and found.__init__ is CotenantError.__init__:
        return found(message, hint=hint)
    # A class with a constructor of its own (UnknownName) arrives as the base that has its exit code.
    by_code = {5: errors.NotPermitted, 4: errors.NoSuchJob, 2: errors.UsageError}
    return by_code.get(int(body.get("exit_code", 1)), CotenantError)(message, hint=hint)
