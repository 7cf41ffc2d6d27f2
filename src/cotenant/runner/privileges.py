"""User, groups, limits and file mask of a job, and file access with the rights of its user."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator, Mapping, Sequence


class UnknownUser(Exception):
    """The machine has no such user; the text is a sentence for people."""


def become(uid: int, user: str | None = None) -> None:
    """Become the user `uid` for good, with all groups of the account.

    Raises:
        UnknownUser: no account has this id, or its name is not `user`, who had it before.
        OSError: this process may not.
    """
    try:
        name, gid = _account(uid)
    except KeyError as error:
        raise UnknownUser(f"no user of this machine has the id {uid}") from error
    if user not in (None, name, str(uid)):
        raise UnknownUser(f"the id {uid} was that of user `{user}` and is `{name}`'s now")
    os.initgroups(name, gid)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


@contextlib.contextmanager
def acting_as(uid: int | None) -> Iterator[None]:
    """Within the block open files as the user `uid`; None changes nothing.

    Only the effective ids change, so that user may not signal this process (kill(2) checks real and saved ids).

    Raises:
        OSError: there is no such user, or this process may not.
    """
    if uid is None:
        yield
        return
    try:
        name, gid = _account(uid)
    except KeyError as error:
        raise PermissionError(1, f"no user has the id {uid}") from error
    before = os.geteuid(), os.getegid(), os.getgroups()
    try:
        os.setgroups(os.getgrouplist(name, gid))
        os.setegid(gid)
        os.seteuid(uid)
        yield
    finally:
        os.seteuid(before[0])
        os.setegid(before[1])
        os.setgroups(before[2])


@contextlib.contextmanager
def file_mask(umask: int | None) -> Iterator[None]:
    """Within the block create files with this umask; None changes nothing."""
    if umask is None:
        yield
        return
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


def set_limits(limits: Mapping[str, Sequence[int]]) -> None:
    """Set (soft, hard) limits by their names in getrlimit(2) without `RLIMIT_`; -1 is unlimited.

    A limit that may not be raised becomes the nearest allowed one; a name that this machine does not know is ignored.
    """
    for name, (soft, hard) in limits.items():
        number = getattr(resource, f"RLIMIT_{name.upper()}", None)
        if number is None:
            continue
        try:
            resource.setrlimit(number, (soft, hard))
        except (OSError, ValueError):
            most = _stricter_limit(hard, resource.getrlimit(number)[1])
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(number, (_stricter_limit(soft, most), most))


def _stricter_limit(one: int, other: int) -> int:
    """The smaller of two limits."""
    if resource.RLIM_INFINITY in (one, other):
        return other if one == resource.RLIM_INFINITY else one
    return min(one, other)


def _account(uid: int) -> tuple[str, int]:
    """(Name, group id) of an account."""
    import pwd

    found = pwd.getpwuid(uid)
    return found.pw_name, found.pw_gid
