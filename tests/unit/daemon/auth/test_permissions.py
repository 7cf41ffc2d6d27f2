"""Permissions of users, admins and tokens."""

from __future__ import annotations

import logging

import pytest

from builders import a_job
from cotenant.core.errors import NotPermitted, UsageError
from cotenant.daemon.auth.permissions import AccessPolicy, admin_uids
from cotenant.daemon.auth.unix_socket import Peer


def peer(uid):
    return Peer(pid=1, uid=uid, gid=0)


ONE = AccessPolicy(own_uid=1000)
ALL = AccessPolicy(own_uid=0, many=True, admins=frozenset({7}))
JOB = a_job(uid=1000)


@pytest.mark.parametrize(("access", "uid"), [(ONE, 1000), (ONE, 0), (ALL, 0), (ALL, 7), (ALL, 1000), (ALL, 4242)])
def test_permitted_peers(access, uid):
    access.admit(peer(uid))


@pytest.mark.parametrize(("own", "uid"), [(1000, 1001), (0, 1000)])
def test_refused_peers(own, uid):
    with pytest.raises(NotPermitted, match=f"uid {uid} may not"):
        AccessPolicy(own_uid=own).admit(peer(uid))


@pytest.mark.parametrize(
    ("uid", "sees"),
    [pytest.param(1000, True, id="owner"), (0, True), pytest.param(7, True, id="admin"), (1001, False)],
)
def test_jobs_belong_to_their_owner_and_the_admins(uid, sees):
    assert ALL.may_see(peer(uid), JOB) is sees
    if sees:
        ALL.check_job(peer(uid), JOB)
    else:
        with pytest.raises(NotPermitted, match="job 1 is another user's"):
            ALL.check_job(peer(uid), JOB)


def test_only_admins_control_the_daemon():
    ALL.check_admin(peer(7), "end the daemon")
    ONE.check_admin(peer(1000), "end the daemon")
    with pytest.raises(NotPermitted, match="only an admin may end the daemon"):
        ALL.check_admin(peer(1000), "end the daemon")


def test_a_token_has_an_admin_s_rights_only_if_it_says_so():
    for access, uid in ((ONE, 1000), (ALL, 7), (ALL, 0)):
        plain = Peer(pid=0, uid=uid, gid=0, token="0123abcd", admin=False)
        assert not access.is_admin(plain)
        assert access.may_see(plain, JOB) is (uid == 1000)
        assert access.is_admin(Peer(pid=0, uid=uid, gid=0, token="0123abcd"))
        with pytest.raises(NotPermitted, match="only users on the machine itself may make tokens"):
            access.check_local(plain, "make tokens")
        access.check_local(peer(uid), "make tokens")


def test_actions_of_admins_on_jobs_of_others_are_logged(caplog):
    with caplog.at_level(logging.WARNING):
        ALL.note(peer(1000), "cancel", JOB)
        assert caplog.records == []
        ALL.note(peer(7), "cancel", JOB)
        ALL.note(peer(7), "shutdown")
        ALL.note(Peer(pid=0, uid=7, gid=0, token="0123abcd"), "shutdown")
    assert [record.fields for record in caplog.records] == [
        {"uid": 7, "pid": 1, "action": "cancel", "job": 1},
        {"uid": 7, "pid": 1, "action": "shutdown"},
        {"uid": 7, "pid": 0, "action": "shutdown", "token": "0123abcd"},
    ]


def test_admins_by_name_and_by_number():
    assert admin_uids(["root", "4242"]) == {0, 4242}
    with pytest.raises(UsageError, match="names `no-such-user-here`"):
        admin_uids(["no-such-user-here"])
