"""Output that is followed while it grows."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from cotenant.daemon import log_stream
from cotenant.daemon.log_stream import OutputLocation, follow


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(log_stream, "POLL_S", 0.0)


def collected(looks, *, until_end=True, tail_bytes=None):
    """What `follow` gives while `looks` come one after the other; a look may write first."""
    steps = iter(looks)

    async def look():
        write, output = next(steps)
        write()
        return output

    async def collect():
        return [piece async for piece in follow(look, until_end=until_end, tail_bytes=tail_bytes)]

    return b"".join(asyncio.run(collect()))


def appends(path, text):
    def write():
        with path.open("a") as file:
            file.write(text)

    return write


def nothing():
    pass


def test_appended_output_is_streamed_once_and_completely(tmp_path):
    path = tmp_path / "out"
    running = OutputLocation(path=path, attempt=1, is_final=False)
    final = OutputLocation(path=path, attempt=1, is_final=True)
    assert (
        collected([(nothing, running), (appends(path, "a"), running), (nothing, running), (appends(path, "b"), final)])
        == b"ab"
    )


def test_without_following_it_ends_at_the_end_of_the_file(tmp_path):
    path = tmp_path / "out"
    path.write_text("so far")
    assert collected([(nothing, OutputLocation(path=path, attempt=1, is_final=False))], until_end=False) == b"so far"


def test_a_job_not_yet_started(tmp_path):
    path = tmp_path / "out"
    before = OutputLocation(path=None, attempt=0, is_final=False)
    final = OutputLocation(path=path, attempt=1, is_final=True)
    assert collected([(nothing, before), (nothing, before), (appends(path, "x"), final)]) == b"x"


def test_the_next_attempt_follows_the_rest_of_the_last(tmp_path):
    one, two = tmp_path / "1", tmp_path / "2"
    first = OutputLocation(path=one, attempt=1, is_final=False)
    second = OutputLocation(path=two, attempt=2, is_final=True)
    appends(two, "second")()
    assert collected([(appends(one, "fir"), first), (appends(one, "st,"), second)]) == b"first,second"


def test_attempts_that_share_a_log_are_streamed_once(tmp_path):
    path = tmp_path / "out"
    first = OutputLocation(path=path, attempt=1, is_final=False)
    second = OutputLocation(path=path, attempt=2, is_final=True)
    assert collected([(appends(path, "1"), first), (appends(path, "2"), second)]) == b"12"


def test_a_log_larger_than_a_chunk_is_streamed_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(log_stream, "CHUNK_BYTES", 4)
    path = tmp_path / "out"
    path.write_text("0123456789")
    assert collected([(nothing, OutputLocation(path=path, attempt=1, is_final=True))]) == b"0123456789"


@pytest.mark.parametrize(
    ("tail_bytes", "expected"),
    [
        pytest.param(None, b"older newest", id="all of it"),
        pytest.param(3, b"est", id="within the newest file"),
        pytest.param(8, b"r newest", id="from the middle of the rotated one"),
        pytest.param(100, b"older newest", id="more than there is"),
    ],
)
def test_what_was_rotated_comes_before_the_newest_file(tmp_path, tail_bytes, expected):
    path = tmp_path / "out"
    path.with_name("out.1").write_text("older ")
    path.write_text("newest")
    final = OutputLocation(path=path, attempt=1, is_final=True)
    assert collected([(nothing, final)], until_end=False, tail_bytes=tail_bytes) == expected


def test_a_rotation_while_it_is_followed_repeats_nothing(tmp_path):
    path = tmp_path / "out"

    def truncate():
        path.with_name("out.1").write_bytes(path.read_bytes())
        path.write_text("")

    running = OutputLocation(path=path, attempt=1, is_final=False)
    final = OutputLocation(path=path, attempt=1, is_final=True)
    looks = [(appends(path, "first"), running), (truncate, running), (appends(path, "2nd"), running), (nothing, final)]
    assert collected(looks) == b"first2nd"


def test_a_file_that_the_submitter_named_is_not_joined_with_another(tmp_path, monkeypatch):
    path = tmp_path / "out"
    path.with_name("out.1").write_text("not of this job ")
    path.write_text("mine")
    final = OutputLocation(path=path, attempt=1, is_final=True, owner_uid=0)
    monkeypatch.setattr(log_stream, "open_as", lambda uid, name: os.open(name, os.O_RDONLY))
    assert collected([(nothing, final)], until_end=False) == b"mine"


def test_a_reader_that_goes_away_while_the_file_is_opened_leaves_no_descriptor(tmp_path, monkeypatch):
    """Each `logs -f` that was interrupted in this moment left one open in the daemon."""
    path = tmp_path / "out"
    path.write_text("text")
    opened, go_on, descriptors = threading.Event(), threading.Event(), []

    def slow_open(uid, name):
        opened.set()
        go_on.wait()
        descriptors.append(os.open(name, os.O_RDONLY))
        return descriptors[0]

    async def locate():
        return OutputLocation(path=path, attempt=1, is_final=False, owner_uid=1)

    async def read():
        async for _ in follow(locate, until_end=True):
            pass

    async def interrupted():
        reader = asyncio.create_task(read())
        await asyncio.to_thread(opened.wait)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        go_on.set()
        while not descriptors:
            await asyncio.sleep(0)
        await asyncio.get_running_loop().shutdown_default_executor()
        await asyncio.sleep(0)  # the callback of the future that the thread has resolved

    monkeypatch.setattr(log_stream, "open_as", slow_open)
    asyncio.run(interrupted())
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[0])
