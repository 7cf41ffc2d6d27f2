"""Tokens: what is stored, when they are valid, and the throttling of guesses."""

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
def store(tmp_path, clock):
    return TokenStore(tmp_path / "tokens.json", now=clock)


def test_a_token_is_found_for_its_user(store):
    token, text = store.create(1001, "laptop", admin=True)
    other, _ = store.create(1002, "")
    assert store.find(text) == token
    assert (token.uid, token.name, token.admin, token.expires_at_s) == (1001, "laptop", True, None)
    assert (other.uid, other.admin) == (1002, False)
    assert store.all() == sorted([token, other], key=lambda entry: (entry.created_at_s, entry.id))


def test_the_file_holds_no_secret_and_only_its_owner_reads_it(store, tmp_path):
    _, text = store.create(1001, "x")
    path = tmp_path / "tokens.json"
    assert text.split("_", 2)[2] not in path.read_text(), "it may have underscores itself"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.json"]


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
def test_a_changed_token_is_refused(store, change):
    _, text = store.create(1001, "x")
    assert store.find(change(text)) is None


def test_a_secret_fits_one_token_only(store):
    first, text = store.create(1001, "x")
    second, _ = store.create(1002, "y")
    assert store.find(text.replace(first.id, second.id)) is None


def test_a_token_expires(store, clock):
    token, text = store.create(1001, "x", lifetime_s=60)
    clock.now_s += 59.9
    assert store.find(text) == token
    store.check(token.id)
    clock.now_s += 0.1
    assert store.find(text) is None
    with pytest.raises(NotPermitted, match="no longer valid"):
        store.check(token.id)
    assert store.all() == [token]  # it can still be seen what it was


def test_a_revoked_token_stays_revoked_after_a_restart(store, tmp_path):
    token, text = store.create(1001, "x")
    other, other_text = store.create(1001, "y")
    store.revoke(token.id)
    again = TokenStore(tmp_path / "tokens.json")
    for reopened in (store, again):
        assert reopened.find(text) is None
        assert reopened.find(other_text) == other
        with pytest.raises(NotPermitted):
            store.check(token.id)
        with pytest.raises(UsageError, match=f"no token `{token.id}`"):
            store.revoke(token.id)


def test_a_token_that_cannot_be_saved_is_not_issued(store, monkeypatch):
    token, text = store.create(1001, "x")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tokens.os, "fsync", fail)
    with pytest.raises(BackendError, match="No space left"):
        store.create(1001, "y")
    with pytest.raises(BackendError, match="No space left"):
        store.revoke(token.id)
    monkeypatch.undo()
    assert store.all() == [token]
    assert store.find(text) == token
    assert [path.name for path in store._path.parent.iterdir()] == ["tokens.json"]


@pytest.mark.parametrize(
    ("name", "lifetime_s", "says"),
    [("x" * 101, None, "at most 100"), ("a\nb", None, r"U\+000A"), ("x", 0, "cannot last"), ("x", -1, "cannot")],
)
def test_invalid_token_requests_are_refused(store, name, lifetime_s, says):
    with pytest.raises(UsageError, match=says):
        store.create(1001, name, lifetime_s=lifetime_s)
    assert store.all() == []


def test_the_number_of_tokens_is_limited(store, monkeypatch):
    monkeypatch.setattr(tokens, "MAX_TOKENS", 2)
    for _ in range(2):
        store.create(1001, "x")
    with pytest.raises(UsageError, match="2 tokens already"):
        store.create(1001, "x")


def test_one_user_cannot_take_the_tokens_of_others(store, monkeypatch):
    monkeypatch.setattr(tokens, "MAX_TOKENS_OF_USER", 2)
    for _ in range(2):
        store.create(1001, "x")
    with pytest.raises(UsageError, match="you have 2 tokens already"):
        store.create(1001, "x")
    store.create(1002, "x")


def test_expired_tokens_take_no_place(store, clock, monkeypatch):
    monkeypatch.setattr(tokens, "MAX_TOKENS", 3)
    monkeypatch.setattr(tokens, "MAX_TOKENS_OF_USER", 2)
    for _ in range(2):
        store.create(1001, "old", lifetime_s=60.0)
    clock.now_s += 61.0
    store.create(1001, "new")
    assert [token.name for token in store.all()] == ["old", "old", "new"], "listed while there is room"
    store.create(1001, "new")
    assert [token.name for token in store.all()] == ["new", "new"]


def test_tokens_created_concurrently_are_all_saved(store, tmp_path):
    threads = [threading.Thread(target=store.create, args=(1000 + i, "x")) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {entry.uid for entry in TokenStore(tmp_path / "tokens.json").all()} == set(range(1000, 1020))


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
def test_an_undecodable_file_is_an_error(tmp_path, text, says):
    path = tmp_path / "tokens.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(BackendError, match=says):
        TokenStore(path)


def test_values_of_a_wrong_type_are_an_error(store, tmp_path):
    store.create(1001, "x")
    path = tmp_path / "tokens.json"
    data = json.loads(path.read_text())
    data["tokens"][0]["uid"] = "0"
    path.write_text(json.dumps(data))
    with pytest.raises(BackendError, match="`uid` of a token is '0'"):
        TokenStore(path)


def test_a_file_that_others_may_write_is_refused(store, tmp_path):
    store.create(1001, "x")
    os.chmod(tmp_path / "tokens.json", 0o620)  # noqa: PTH101 (as an admin would)
    with pytest.raises(BackendError, match="open to others"):
        TokenStore(tmp_path / "tokens.json")


def test_the_token_id_is_parsed_from_its_text():
    assert token_id_of("cot_0123abcd_" + "x" * 43) == "0123abcd"
    assert token_id_of("cot_0123abcd") is None


class TestGuessing:
    def test_failed_attempts_above_the_limit_are_blocked(self, clock):
        bad = TokenThrottle(now=clock)
        for _ in range(tokens.MAX_FAILURES):
            assert not bad.refuses("1.2.3.4")
            bad.add("1.2.3.4")
        assert bad.refuses("1.2.3.4")
        assert not bad.refuses("1.2.3.5")

    def test_a_block_ends_after_a_while(self, clock):
        bad = TokenThrottle(now=clock)
        for _ in range(2 * tokens.MAX_FAILURES):
            bad.add("1.2.3.4")
        clock.now_s += tokens.FAILURE_WINDOW_S - 0.1
        assert bad.refuses("1.2.3.4")
        clock.now_s += 0.1
        assert not bad.refuses("1.2.3.4")

    def test_remembered_addresses_are_bounded(self, clock, monkeypatch):
        monkeypatch.setattr(tokens, "MAX_TRACKED", 10)
        bad = TokenThrottle(now=clock)
        for i in range(1000):
            bad.add(f"10.0.{i // 250}.{i % 250}")
        assert len(bad._seen) == 10
