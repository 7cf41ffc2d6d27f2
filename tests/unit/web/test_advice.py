from cotenant.web.pages.job import _advice


def a_job(**fields):
    return {"state": "RUNNING", "exclusive": False, "advice": [], "idle_s": None, **fields}


def test_an_idle_job_is_pointed_out():
    assert "computes nothing" in " ".join(_advice(a_job(idle_s=1900.0)))
    assert _advice(a_job()) == []


def test_the_daemons_advice_comes_first():
    found = _advice(a_job(state="PENDING", exclusive=True, advice=["declare less"]))
    assert found[0] == "declare less"
    assert "share" in found[1]
