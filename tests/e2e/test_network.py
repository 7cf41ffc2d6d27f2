"""The daemon on the network, from the token to the job and back, over a real socket on 127.0.0.1."""

from __future__ import annotations

import json
import os
import pwd

import pytest

from cotenant.core.errors import NotPermitted
from cotenant.daemon.client import Client
from cotenant.daemon.remote_address import remote_from_env


@pytest.fixture
def remote(site):
    """A site that listens, and `cli` as from another machine: no socket there, but an address."""
    site.env["COTENANT_TCP__LISTEN"] = "127.0.0.1:0"
    site.start()
    del site.env["COTENANT_SOCKET"]
    url = site.client.status()["tcp"]

    def local(*args):
        return site.cli(*args, "--socket", str(site.socket))

    site.local, site.url = local, url
    site.address = url.removeprefix("http://")
    return site


def from_afar(remote):
    """The client that the environment of `remote` describes."""
    client = Client()
    client._remote = remote_from_env(remote.env)
    return client


def token(remote, *args):
    made = remote.local("token", "create", "--json", *args)
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout)["token"]


def test_a_job_is_submitted_over_the_network(remote):
    remote.env["COTENANT_TOKEN"] = token(remote, "--name", "laptop")["text"]
    remote.env["COTENANT_HOST"] = remote.address
    done = remote.cli(
        "submit", "--gpu-mem", "1G", "--parsable", "--", "sh", "-c", "echo secret=$COTENANT_TOKEN; exit 3"
    )
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    assert remote.cli("wait", job).returncode == 3
    assert remote.cli("logs", "-f", job).stdout == "secret=\n"  # jobs do not get the token
    assert remote.cli("ls", "--no-header", "--format", "id").stdout.split() == [job]
    held = remote.cli("submit", "--gpu-mem", "1G", "--hold", "--parsable", "--", "true").stdout.strip()
    assert remote.cli("cancel", held).returncode == 0
    made = json.loads(remote.local("token", "list", "--json").stdout)["tokens"][0]
    story = remote.cli("events", held).stdout
    assert f"cancel by {pwd.getpwuid(os.getuid()).pw_name} (token {made['id']})" in story


def test_the_host_option_names_the_daemon(remote):
    remote.env["COTENANT_TOKEN"] = token(remote)["text"]
    assert remote.cli("ls", "--host", remote.address).returncode == 0
    both = remote.cli("ls", "--host", remote.address, "--socket", "x")
    assert (both.returncode, both.stderr.splitlines()[0]) == (2, "error: --host and --socket name two daemons")


def test_only_a_valid_token_is_accepted(remote):
    made = token(remote)
    remote.env["COTENANT_HOST"] = remote.address
    without = remote.cli("ls")
    assert (without.returncode, without.stderr.splitlines()[0]) == (2, "error: no token for the daemon on the network")
    remote.env["COTENANT_TOKEN"] = made["text"][:-2] + "zz"
    wrong = remote.cli("ls", "--json")
    assert (wrong.returncode, json.loads(wrong.stdout)["error"]["message"]) == (5, "this token is not good")
    remote.env["COTENANT_TOKEN"] = made["text"]
    assert remote.cli("ls").returncode == 0
    assert remote.local("token", "revoke", made["id"]).returncode == 0
    assert remote.cli("ls").returncode == 5
    assert made["text"] not in remote.log.read_text()
    assert made["text"].rpartition("_")[2] not in remote.log.read_text()


def test_a_token_has_admin_rights_only_if_created_with_them(remote):
    remote.env["COTENANT_HOST"] = remote.address
    remote.env["COTENANT_TOKEN"] = token(remote)["text"]
    assert remote.cli("submit", "--gpu-mem", "1G", "--priority", "5", "--", "true").returncode == 5
    assert remote.cli("daemon", "stop").returncode == 5
    with pytest.raises(NotPermitted, match="only users on the machine itself"):
        from_afar(remote).create_token()
    remote.env["COTENANT_TOKEN"] = token(remote, "--admin")["text"]
    done = remote.cli("submit", "--gpu-mem", "1G", "--priority", "5", "--parsable", "--", "true")
    assert done.returncode == 0
    assert remote.cli("wait", done.stdout.strip()).returncode == 0
    with pytest.raises(NotPermitted, match="only users on the machine itself"):
        from_afar(remote).create_token()
    assert remote.cli("daemon", "stop").stdout == f"daemon {remote.daemon.pid} is stopping\n"
    assert remote.daemon.wait(60) == 0


def test_a_follower_ends_with_its_token(remote):
    made = token(remote)
    remote.env |= {"COTENANT_HOST": remote.address, "COTENANT_TOKEN": made["text"]}
    job = remote.submit("echo one; sleep 1000")
    follower = remote.popen("logs", "-f", str(job))
    assert follower.stdout.readline() == "one\n"
    assert remote.local("token", "revoke", made["id"]).returncode == 0
    _, err = follower.communicate(timeout=60)
    assert (follower.returncode, err.splitlines()[0].partition("(")[0]) == (
        3,
        "error: the connection to the daemon was lost ",
    )


def test_tokens_outlive_the_daemon(remote):
    remote.env |= {"COTENANT_HOST": remote.address, "COTENANT_TOKEN": token(remote)["text"]}
    remote.env["COTENANT_SOCKET"] = str(remote.socket)
    remote.stop()
    gone = remote.cli("ls")
    assert gone.returncode == 3
    assert f"no daemon listens on `{remote.url}`" in gone.stderr
    remote.start()
    remote.env["COTENANT_HOST"] = remote.client.status()["tcp"]
    assert remote.cli("ls").returncode == 0


def test_the_network_is_off_by_default_and_the_error_says_so(site):
    site.start()
    assert site.client.status()["tcp"] is None
    assert "network    off" in site.cli("daemon", "status").stdout
    assert "this daemon does not listen on the network" in site.cli("token", "create").stderr


def test_an_open_address_is_refused_at_the_start(site):
    site.env["COTENANT_TCP__LISTEN"] = "0.0.0.0:0"
    done = site.cli("daemon", "--simulate", "1xA100-40GB")
    assert done.returncode == 2
    assert "which other machines reach, without TLS" in done.stderr
