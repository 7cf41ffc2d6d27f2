from cotenant.web.sessions import BURST, MAX_SESSIONS_OF_TOKEN, REQUESTS_PER_S, OneTimeKey, RateLimit, SessionStore


class Clock:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


def test_a_session_is_found_until_it_expires():
    clock = Clock()
    store = SessionStore(60.0, now=clock)
    session = store.create("cot_x")
    assert store.find(session.key) is session
    assert store.find("another") is None
    clock.now_s += 60.0
    assert store.find(session.key) is None
    assert not store.is_alive(session)


def test_an_ended_session_is_not_found():
    store = SessionStore(60.0)
    session = store.create(None)
    store.end(session)
    assert store.find(session.key) is None


def test_sessions_have_keys_and_csrf_tokens_of_their_own():
    store = SessionStore(60.0)
    one, other = store.create("t"), store.create("t")
    assert len({one.key, other.key, one.csrf, other.csrf}) == 4
    assert one.is_csrf_token(one.csrf)
    assert not one.is_csrf_token(other.csrf)
    assert not one.is_csrf_token("")
    assert not one.is_csrf_token("é")


def test_a_key_opens_once():
    key = OneTimeKey()
    text = key.text
    assert not key.use("wrong")
    assert key.use(text)
    assert not key.use(text)


def test_requests_beyond_the_burst_wait_for_the_rate():
    clock = Clock()
    rates = RateLimit(now=clock)
    assert [rates.admits("a") for _ in range(BURST + 1)] == [True] * BURST + [False]
    assert rates.admits("b")
    clock.now_s += 1.5 / REQUESTS_PER_S
    assert [rates.admits("a"), rates.admits("a")] == [True, False]


def test_who_logs_in_again_and_again_ends_only_sessions_of_their_own():
    store = SessionStore(60.0)
    other = store.create("cot_other")
    own = [store.create("cot_x") for _ in range(MAX_SESSIONS_OF_TOKEN + 2)]
    assert store.is_alive(other)
    assert [store.is_alive(session) for session in own] == [False] * 2 + [True] * MAX_SESSIONS_OF_TOKEN
