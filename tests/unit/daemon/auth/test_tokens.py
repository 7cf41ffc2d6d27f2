"""Tokens: what is kept of them, when they are good, and how long anybody may guess."""

from __future__ import annotations

import json
import os
import threading

import pytest

from cotenant.core.errors import BackendError, NotPermitted, UsageError
from cotenant.daemon.auth import tokens
from cotenant.daemon.auth.tokens import TokenStore, TokenThrottle, token_id_of


class Clock:
    """Seconds, set by hand."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def kept(tmp_path, clock):
    return TokenStore(tmp_path / "tokens.json", now=clock)


def test_opens_for_whom_it_was_made(kept):
    token, text = kept.create(1001, "laptop", admin=True)
    other, _ = kept.create(1002, "")
    assert kept.find(text) == token
    assert (token.uid, token.name, token.admin, token.expires_at_s) == (1001, "laptop", True, None)
    assert (other.uid, other.admin) == (1002, False)
    assert kept.all() == sorted([token, other], key=lambda each: (each.created_at_s, each.id))


def test_the_file_holds_no_secret_and_is_its_user_s_alone(kept, tmp_path):
    _, text = kept.create(1001, "x")
    path = tmp_path / "tokens.json"
    assert text.split("_", 2)[2] not in path.read_text(), "it may have underscores itself"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["tokens.json"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text[:-1] + ("A" if text[-1] != "A" else "B"), id="last character"),
        pytest.param(lambda text: text + "A", id="longer"),
        pytest.param(lambda text: text[:-1], id="shorter"),
        pytest.param(lambda text: "cot_00000000" + text[12:], id="another id"),
        pytest.param(lambda text: text[:13], id="no secret"),
        pytest.param(lambda text: text[:-1] + "é", id="no ASCII"),
        pytest.param(lambda _: "", id="nothing"),
    ],
)
def test_what_is_nearly_a_token_opens_nothing(kept, change):
    _, text = kept.create(1001, "x")
    assert kept.find(change(text)) is None


def test_a_secret_opens_no_other_token(kept):
    first, text = kept.create(1001, "x")
    second, _ = kept.create(1002, "y")
    assert kept.find(text.replace(first.id, second.id)) is None


def test_expires(kept, clock):
    token, text = kept.create(1001, "x", lifetime_s=60)
    clock.now_s += 59.9
    assert kept.find(text) == token
    kept.check(token.id)
    clock.now_s += 0.1
    assert kept.find(text) is None
    with pytest.raises(NotPermitted, match="no longer valid"):
        kept.check(token.id)
    assert kept.all() == [token]  # it can still be seen what it was


def test_revoked_is_gone_also_after_a_restart(kept, tmp_path):
    token, text = kept.create(1001, "x")
    other, other_text = kept.create(1001, "y")
    kept.revoke(token.id)
    again = TokenStore(tmp_path / "tokens.json")
    for each in (kept, again):
        assert each.find(text) is None
        assert each.find(other_text) == other
        with pytest.raises(NotPermitted):
            each.check(token.id)
        with pytest.raises(UsageError, match=f"no token `{token.id}`"):
            each.revoke(token.id)


def test_what_cannot_be_kept_is_not_given_out(kept, monkeypatch):
    token, text = kept.create(1001, "x")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tokens.os, "fsync", fail)
    with pytest.raises(BackendError, match="No space left"):
        kept.create(1001, "y")
    with pytest.raises(BackendError, match="No space left"):
        kept.revoke(token.id)
    monkeypatch.undo()
    assert kept.all() == [token]
    assert kept.find(text) == token
    assert [path.name for path in kept._path.parent.iterdir()] == ["tokens.json"]


@pytest.mark.parametrize(
    ("name", "lifetime_s", "says"),
    [("x" * 101, None, "100 printable"), ("a\nb", None, "printable"), ("x", 0, "cannot last"), ("x", -1, "cannot")],
)
def test_what_cannot_be(kept, name, lifetime_s, says):
    with pytest.raises(UsageError, match=says):
        kept.create(1001, name, lifetime_s=lifetime_s)
    assert kept.all() == []


def test_no_end_of_tokens(kept, monkeypatch):
    monkeypatch.setattr(tokens, "MAX_TOKENS", 2)
    for _ in range(2):
        kept.create(1001, "x")
    with pytest.raises(UsageError, match="2 tokens already"):
        kept.create(1001, "x")


def test_made_at_the_same_time_all_are_kept(kept, tmp_path):
    threads = [threading.Thread(target=kept.create, args=(1000 + i, "x")) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {each.uid for each in TokenStore(tmp_path / "tokens.json").all()} == set(range(1000, 1020))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"schema": 1}', "damaged"),
        ('{"schema": 1, "tokens": [{"id": "x"}]}', "damaged"),
        ('{"schema": 2, "tokens": []}', "schema 2, wanted 1"),
    ],
)
def test_a_file_that_cannot_be_understood_is_no_empty_one(tmp_path, text, says):
    path = tmp_path / "tokens.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(BackendError, match=says):
        TokenStore(path)


def test_values_of_another_kind_are_damage(kept, tmp_path):
    kept.create(1001, "x")
    path = tmp_path / "tokens.json"
    told = json.loads(path.read_text())
    told["tokens"][0]["uid"] = "0"
    path.write_text(json.dumps(told))
    with pytest.raises(BackendError, match="`uid` of a token is '0'"):
        TokenStore(path)


def test_a_file_that_others_may_write_is_not_believed(kept, tmp_path):
    kept.create(1001, "x")
    os.chmod(tmp_path / "tokens.json", 0o620)  # noqa: PTH101 (as an admin would)
    with pytest.raises(BackendError, match="open to others"):
        TokenStore(tmp_path / "tokens.json")


def test_id_in_a_text():
    assert token_id_of("cot_0123abcd_" + "x" * 43) == "0123abcd"
    assert token_id_of("cot_0123abcd") is None


class TestGuessing:
    def test_ends_after_some(self, clock):
        bad = TokenThrottle(now=clock)
        for _ in range(tokens.MAX_FAILURES):
            assert not bad.refuses("1.2.3.4", "aaaaaaaa")
            bad.add("1.2.3.4", "aaaaaaaa")
        assert bad.refuses("1.2.3.4", "aaaaaaaa")
        assert not bad.refuses("1.2.3.4", "bbbbbbbb")  # who has another token there is not shut out
        assert not bad.refuses("1.2.3.5", "aaaaaaaa")

    def test_may_go_on_after_a_while(self, clock):
        bad = TokenThrottle(now=clock)
        for _ in range(2 * tokens.MAX_FAILURES):
            bad.add("1.2.3.4", None)
        clock.now_s += tokens.FAILURE_WINDOW_S - 0.1
        assert bad.refuses("1.2.3.4", None)
        clock.now_s += 0.1
        assert not bad.refuses("1.2.3.4", None)

    def test_addresses_without_end_take_no_memory_without_end(self, clock, monkeypatch):
        monkeypatch.setattr(tokens, "MAX_TRACKED", 10)
        bad = TokenThrottle(now=clock)
        for i in range(1000):
            bad.add(f"10.0.{i // 250}.{i % 250}", None)
        assert len(bad._seen) == 10
