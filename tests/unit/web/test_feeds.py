import asyncio

import pytest

from cotenant.core.errors import DaemonUnreachable, UsageError
from cotenant.web import feeds
from cotenant.web.feeds import Feed, Feeds, PollBudget


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name in ("INTERVAL_S", "RETRY_S"):
        monkeypatch.setattr(feeds, name, 0.001)
    monkeypatch.setattr(feeds, "LINGER_S", 0.0)


class Source:
    """Counts polls; `answers` are returned, or raised, in turn, the last one for ever."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.polls = 0

    async def __call__(self):
        self.polls += 1
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def taken(feed, count):
    readings = feed.readings()
    found = [await anext(readings) for _ in range(count)]
    await readings.aclose()
    return found


def test_all_watchers_share_the_polls():
    async def scenario():
        source = Source("value")
        feed = Feed(source, PollBudget(share=1.0))
        found = await asyncio.gather(*(taken(feed, 2) for _ in range(50)))
        assert {reading.value for readings in found for reading in readings} == {"value"}
        # Each reader saw two readings in a row; had each polled for itself, it were 100.
        assert source.polls < 10

    asyncio.run(scenario())


def test_a_feed_without_watchers_rests_and_then_polls_anew():
    async def scenario():
        source = Source("old", "new")
        feed = Feed(source, PollBudget(share=1.0))
        assert (await feed.first()).value == "old"
        while not feed.is_idle:
            await asyncio.sleep(0)
        source.answers = ["new"]
        assert (await feed.first()).value == "new"

    asyncio.run(scenario())


def test_an_error_keeps_the_last_value_and_says_when_it_was():
    async def scenario():
        feed = Feed(Source("value", DaemonUnreachable("gone"), "again"), PollBudget(share=1.0))
        first, lost, again = await taken(feed, 3)
        assert (first.value, first.error) == ("value", None)
        assert (lost.value, lost.at_s, str(lost.error)) == ("value", first.at_s, "gone")
        assert (again.value, again.error) == ("again", None)

    asyncio.run(scenario())


def test_a_first_value_that_is_refused_is_an_error():
    async def scenario():
        feed = Feed(Source(UsageError("no")), PollBudget(share=1.0))
        with pytest.raises(UsageError, match="no"):
            await feed.first()

    asyncio.run(scenario())


def test_all_feeds_together_use_a_share_of_the_time(monkeypatch):
    clock, spent = [0.0], [0.0]
    slept = []
    monkeypatch.setattr(feeds.time, "monotonic", lambda: clock[0])

    async def sleep(seconds):
        slept.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(feeds.asyncio, "sleep", sleep)

    async def scenario():
        budget = PollBudget(0.05, lambda: spent[0])
        for _ in range(10):
            async with budget.turn():
                spent[0] += 0.1
                clock[0] += 2.0  # a machine with other work: only the daemon's own time counts

    asyncio.run(scenario())
    assert sum(slept) == pytest.approx(9 * 0.1 * 19)


def test_feeds_are_found_by_key_and_idle_ones_make_room(monkeypatch):
    monkeypatch.setattr(feeds, "MAX_FEEDS", 2)
    found = Feeds()
    first = found.get("a", Source(1))
    assert found.get("a", Source(2)) is first
    found.get("b", Source(1))
    found.get("c", Source(1))
    assert found.get("a", Source(1)) is not first
