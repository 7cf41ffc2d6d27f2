"""Which daemon on the network, and with which token."""

from __future__ import annotations

import pytest

from cotenant.core.errors import UsageError
from cotenant.daemon.remote_address import parse_address, remote_from_env

TOKEN = "cot_0123abcd_" + "x" * 43


@pytest.mark.parametrize(
    ("text", "host", "port", "tls"),
    [
        ("gpu1", "gpu1", 7411, True),
        ("gpu1:80", "gpu1", 80, True),
        ("https://gpu1:9000/", "gpu1", 9000, True),
        ("http://gpu1", "gpu1", 7411, False),
        ("127.0.0.1:7412", "127.0.0.1", 7412, False),
        ("localhost", "localhost", 7411, False),
        ("[::1]:7411", "::1", 7411, False),
        ("https://127.0.0.1:1", "127.0.0.1", 1, True),
        ("10.0.0.1", "10.0.0.1", 7411, True),
    ],
)
def test_an_address_is_parsed_into_host_port_and_tls(text, host, port, tls):
    assert parse_address(text) == (host, port, tls)


@pytest.mark.parametrize(
    "text",
    [
        *("ftp://gpu1", "gpu1:port", "gpu1:70000", "http://", "gpu1/path", "ann@gpu1", "gpu1?x=1", "[::1", ":7411"),
        *("a b", "a\nb", "a..b"),
    ],
)
def test_an_invalid_address_is_refused(text):
    with pytest.raises(UsageError, match="not the address of a daemon"):
        parse_address(text)


def test_without_a_host_there_is_no_remote_daemon():
    assert remote_from_env({}) is None
    assert remote_from_env({"COTENANT_HOST": ""}) is None


def test_the_token_is_read_from_the_environment_or_a_file(tmp_path):
    own = tmp_path / ".config" / "cotenant" / "token"
    own.parent.mkdir(parents=True)
    named = tmp_path / "named"
    for path, text in ((own, TOKEN.replace("x", "o")), (named, TOKEN.replace("x", "n"))):
        path.write_text(text + "\n")
        path.chmod(0o600)
    env = {"COTENANT_HOST": "gpu1", "HOME": str(tmp_path)}
    assert remote_from_env(env).token == TOKEN.replace("x", "o")
    assert remote_from_env({**env, "COTENANT_TOKEN_FILE": str(named)}).token == TOKEN.replace("x", "n")
    assert remote_from_env({**env, "COTENANT_TOKEN_FILE": str(named), "COTENANT_TOKEN": TOKEN}).token == TOKEN
    own.chmod(0o640)
    with pytest.raises(UsageError, match="can be read by others"):
        remote_from_env(env)
    own.unlink()
    with pytest.raises(UsageError, match="no token"):
        remote_from_env(env)


@pytest.mark.parametrize("token", ["cot_a b", "cot_\x00", "cot_é", "cot_a\r\nx-evil: 1"])
def test_a_token_goes_into_no_header_that_it_would_break(token):
    with pytest.raises(UsageError, match="characters"):
        remote_from_env({"COTENANT_HOST": "gpu1", "COTENANT_TOKEN": token})


def test_an_invalid_certificate_file_is_refused(tmp_path):
    env = {"COTENANT_HOST": "gpu1", "COTENANT_TOKEN": TOKEN, "COTENANT_CA": str(tmp_path / "none")}
    with pytest.raises(UsageError, match="COTENANT_CA"):
        remote_from_env(env).connection(1.0)
