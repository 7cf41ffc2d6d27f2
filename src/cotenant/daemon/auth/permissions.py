"""Who may do what. Decided by the uid from the kernel or from a token, never by a claim of the client."""

from __future__ import annotations

import logging
import pwd
from collections.abc import Iterable
from dataclasses import dataclass

from cotenant.core.errors import NotPermitted, UsageError
from cotenant.core.job import Job
from cotenant.daemon.auth.unix_socket import Peer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPolicy:
    """The access rules of a daemon.

    Attributes:
        own_uid: the daemon's user.
        many: it serves every user of the machine, each with their own jobs; otherwise its own user and root only.
        admins: uids that may see and change all jobs, besides root and, where it serves one user, that one.
    """

    own_uid: int
    many: bool = False
    admins: frozenset[int] = frozenset()

    def admit(self, peer: Peer) -> None:
        """Check that the daemon serves `peer`.

        Raises:
            NotPermitted: the daemon does not serve this user.
        """
        if not self.many and peer.uid not in (self.own_uid, 0):
            raise NotPermitted(f"uid {peer.uid} may not use the daemon of uid {self.own_uid}")

    def is_admin(self, peer: Peer) -> bool:
        """Whether `peer` may see and change all jobs."""
        return peer.admin and (not self.many or peer.uid == 0 or peer.uid in self.admins)

    def may_see(self, peer: Peer, job: Job) -> bool:
        """Whether `peer` may see and change `job`."""
        return self.is_admin(peer) or job.spec.uid == peer.uid

    def check_job(self, peer: Peer, job: Job) -> None:
        """Check that `peer` may see and change `job`.

        Raises:
            NotPermitted: it is another user's.
        """
        if not self.may_see(peer, job):
            raise NotPermitted(f"job {job.id} is another user's")

    def check_local(self, peer: Peer, what: str) -> None:
        """Check that `peer` connected on the unix socket.

        Raises:
            NotPermitted: it came with a token.
        """
        if peer.token is not None:
            raise NotPermitted(f"only users on the machine itself may {what}", hint="use ssh, without --host")

    def check_admin(self, peer: Peer, what: str) -> None:
        """Check that `peer` is an admin.

        Raises:
            NotPermitted: only an admin may.
        """
        if not self.is_admin(peer):
            raise NotPermitted(f"only an admin may {what}")

    def note(self, peer: Peer, what: str, job: Job | None = None) -> None:
        """Log an action of an admin on another user's job, or on the daemon."""
        if job is None or job.spec.uid != peer.uid:
            fields: dict[str, object] = {"uid": peer.uid, "pid": peer.pid, "action": what}
            if peer.token is not None:
                fields["token"] = peer.token
            logger.warning("admin action", extra={"fields": fields if job is None else {**fields, "job": job.id}})

    def note_many(self, peer: Peer, what: str, count: int) -> None:
        """Log an action of an admin on many jobs."""
        if count and self.is_admin(peer):
            fields = {"uid": peer.uid, "pid": peer.pid, "action": what, "jobs": count}
            logger.warning("admin action", extra={"fields": fields})


def admin_uids(names: Iterable[str]) -> frozenset[int]:
    """The uids of users, who may be given by number.

    Raises:
        UsageError: there is no such user.
    """
    found = set()
    for name in names:
        try:
            found.add(int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid)
        except KeyError as error:
            raise UsageError(f"`access.admins` names `{name}`, and this machine has no such user") from error
    return frozenset(found)
