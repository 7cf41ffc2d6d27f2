import pytest

from cotenant.web.pages.job import IDLE_S, _advice

RUNS = {"number": 1}


def a_job(**fields):
    return {"state": "RUNNING", "exclusive": False, "advice": [], "usage": None, **fields}


@pytest.mark.parametrize(
    ("usage", "is_idle"),
    [
        pytest.param({"gpu_s": IDLE_S + 1, "smact": 0.0}, True, id="no activity at all"),
        pytest.param({"gpu_s": IDLE_S + 1, "smact": 0.005}, True, id="hardly any"),
        pytest.param({"gpu_s": IDLE_S + 1, "smact": 0.5}, False, id="works"),
        pytest.param({"gpu_s": IDLE_S + 1, "smact": None}, False, id="activity is unknown"),
        pytest.param({"gpu_s": IDLE_S - 1, "smact": 0.0}, False, id="has just started"),
        pytest.param(None, False, id="not seen"),
    ],
)
def test_a_job_that_holds_memory_and_does_nothing_is_pointed_out(usage, is_idle):
    assert bool(_advice(a_job(usage=usage), RUNS)) == is_idle
    assert _advice(a_job(usage=usage), None) == []


def test_the_daemons_advice_comes_first():
    found = _advice(a_job(state="PENDING", exclusive=True, advice=["declare less"]), None)
    assert found[0] == "declare less"
    assert "share" in found[1]
