"""The default interference model: which source a pair comes from, and the rules where nothing was measured."""

from __future__ import annotations

import statistics

import pytest

from cotenant.core.errors import UsageError
from cotenant.sim.interference import StandardInterference, TrueActivity, draw_sensitivity, kernel, standard
from cotenant.sim.interference.kernel import KernelFit, Traits
from cotenant.sim.interference.sharing import on_slice, slice_speed
from cotenant.sim.interference.tables import FILES, family_of, fits, measured, read_pairs, traits
from cotenant.sim.workloads import workloads


def activity(name):
    job = workloads()[name]
    return TrueActivity(name, job.smact, job.smocc, job.drama, job.utilization, job.first_peak_bytes)


VGG, RESNET, CIFAR = (
    activity(name) for name in ("vgg16_imagenet_bs128", "resnet50_imagenet_bs64", "resnet18_cifar100_bs32_20e")
)
UNKNOWN = TrueActivity("never_seen", 0.5, 0.3, 0.2, 0.8, 8 * 2**30)


def test_the_standard_model_returns_measured_speeds():
    pair = ("vgg16_imagenet_bs64", "resnet50_imagenet_bs64")
    speeds = standard().speeds([activity(name) for name in pair])
    assert speeds == pytest.approx([measured("A100")[pair], measured("A100")[pair[::-1]]])


@pytest.mark.parametrize(
    ("victim", "partner", "gpu", "sharing", "origin"),
    [
        pytest.param(activity("vgg16_imagenet_bs64"), RESNET, "A100-40GB", "time-sliced", "measured", id="pair"),
        pytest.param(UNKNOWN, RESNET, "A100-80GB", "time-sliced", "fitted", id="unseen job, by its activity"),
        pytest.param(
            TrueActivity(None, 0.5), RESNET, "A100-40GB", "time-sliced", "fitted", id="only SMACT known: the law"
        ),
        pytest.param(UNKNOWN, RESNET, "H100-80GB", "time-sliced", "assumed", id="a GPU without pairs"),
        pytest.param(VGG, RESNET, "A100-40GB", "mps", "assumed", id="MPS"),
        pytest.param(VGG, RESNET, "A100-40GB/3g.20gb", "mig", "assumed", id="MIG"),
    ],
)
def test_the_origin_of_a_cost_is_its_first_source(victim, partner, gpu, sharing, origin):
    assert standard().origin(victim, partner, gpu, sharing) == origin


def test_the_users_pairs_precede_published_ones():
    pair = (VGG.workload, RESNET.workload)
    model = StandardInterference(pairs={"A100": {pair: 0.25, pair[::-1]: 0.5}})
    assert model.speeds([VGG, RESNET]) == [0.25, 0.5]


def test_gpu_families_do_not_share_pairs():
    """Speeds do not carry over: the same two jobs on another kind of GPU."""
    pair = ("efficientnet_imagenet_bs64", "mobilenet_imagenet_bs32")
    members = [activity(name) for name in pair]
    assert standard().speeds(members, "RTX2080Ti-11GB")[0] == pytest.approx(measured("RTX2080Ti")[pair])
    assert standard().speeds(members, "A100-40GB")[0] > 1.1 * measured("RTX2080Ti")[pair]


def test_sizes_and_instances_belong_to_one_family():
    assert [family_of(gpu) for gpu in ("A100-40GB", "A100-40GB/1g.5gb", "K80")] == ["A100", "A100", "K80"]


def test_a_job_alone_runs_at_full_speed_except_on_a_slice():
    for sharing in ("exclusive", "time-sliced", "mps"):
        assert standard().speeds([VGG], "A100-40GB", sharing) == [1.0]
    assert standard().speeds([VGG], "A100-40GB/3g.20gb", "mig")[0] == pytest.approx(
        slice_speed(VGG, "A100-40GB/3g.20gb")
    )


@pytest.mark.parametrize(
    ("smact", "count", "low", "high"),
    [
        pytest.param(0.33, 2, 1.0, 1.1, id="two small jobs in about the time of one"),
        pytest.param(0.6, 3, 1.5, 2.1, id="three medium ones"),
        pytest.param(0.3, 7, 2.0, 2.5, id="seven small ones"),
        pytest.param(0.95, 2, 1.5, 1.999, id="two large ones still gain"),
    ],
)
def test_mps_is_within_the_ranges_of_the_thesis(smact, count, low, high):
    speeds = standard().speeds([TrueActivity(None, smact)] * count, sharing="mps")
    assert all(low <= 1 / speed <= high for speed in speeds)


def test_mps_slows_down_when_memory_is_saturated():
    """Two that move memory all the time cannot both run at full speed, however few SMs they use."""
    assert standard().speeds([TrueActivity(None, 0.2, drama=0.9)] * 2, sharing="mps")[0] == pytest.approx(1 / 1.843)


def test_sensitivity_multiplies_the_cost_under_mps():
    sensitive = TrueActivity(None, 0.9, sensitivity=2.0)
    first, second = standard().speeds([sensitive, TrueActivity(None, 0.9)], sharing="mps")
    assert 1 / first - 1 == pytest.approx(2 * (1 / second - 1))


def test_smaller_slices_are_slower():
    sizes = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
    speeds = [slice_speed(RESNET, f"A100-40GB/{size}") for size in sizes]
    assert speeds == sorted(speeds)
    assert speeds[-1] == 1.0
    assert speeds[0] < 0.3


def test_two_jobs_on_one_slice_share_it():
    alone = standard().speeds([RESNET], "A100-40GB/3g.20gb", "mig")[0]
    together = standard().speeds([RESNET, RESNET], "A100-40GB/3g.20gb", "mig")
    assert together[0] < 0.9 * alone


def test_a_job_on_a_slice_is_slower_and_its_slice_busier():
    """2g.10gb of an A100 has 2/7 of the SMs and 2/8 of the bandwidth; figures worked out by hand.

    Slowdown: 1 + 0.376 x 0.4^2.114 x (7/2 - 1) + 0.984 x 0.2 x (8/2 - 1) = 1.7259. The slice shows the work of
    1/1.7259 of the time on 2/7 of the SMs: SMACT 0.4 / 1.7259 x 7/2 = 0.8112, DRAMA 0.2 / 1.7259 x 8/2 = 0.4635.
    """
    job = TrueActivity("job", 0.4, smocc=0.3, drama=0.2)
    assert slice_speed(job, "A100-40GB/2g.10gb") == pytest.approx(0.5794, abs=5e-5)
    found = on_slice(job, "A100-40GB/2g.10gb")
    assert (found.smact, found.drama) == pytest.approx((0.8112, 0.4635), abs=5e-5)
    assert found.workload is None, "pairs were measured on whole GPUs"


def test_the_activity_of_a_slice_is_at_most_one():
    busy = TrueActivity("busy", 1.0, drama=1.0)
    found = on_slice(busy, "A100-40GB/1g.5gb")
    assert slice_speed(busy, "A100-40GB/1g.5gb") == pytest.approx(
        0.0986, abs=5e-5
    )  # 1 + 0.376 x 6 + 0.984 x 7 = 10.144
    assert (found.smact, found.drama) == pytest.approx((0.6901, 0.7886), abs=5e-5)
    light = TrueActivity("light", 0.5)
    assert on_slice(light, "A100-40GB/1g.5gb").smact == 1.0  # 0.5 / 1.5211 x 7 = 2.30


def test_an_unknown_mig_profile_is_an_error():
    with pytest.raises(UsageError, match=r"`A100-40GB/5g\.20gb` names no MIG profile"):
        standard().speeds([VGG], "A100-40GB/5g.20gb", "mig")


def test_an_idle_partner_costs_little():
    """Also far from all that was measured, the fit ends in the law, not in an average."""
    idle = TrueActivity("idle", 0.01, 0.01, 0.0, 0.02, 300 * 2**20)
    assert standard().speeds([VGG, idle])[0] > 0.9
    assert standard().speeds([CIFAR, idle])[0] > 0.9


def test_fits_reproduce_their_measurements():
    for family in FILES:
        fit, known = fits()[family], traits(family)
        off = [abs(fit.speed(v, known[v], p, known[p]) - min(1, speed)) for (v, p), speed in measured(family).items()]
        assert statistics.mean(off) < 0.045, family


def test_fit_survives_json():
    fit, known = fits()["A100"], traits("A100")
    again = KernelFit.from_json(fit.to_json())
    first, second = sorted(known)[:2]
    assert again.speed(first, known[first], second, known[second]) == fit.speed(
        first, known[first], second, known[second]
    )
    assert again.by_activity


def test_speeds_do_not_depend_on_the_pairs_before(monkeypatch):
    monkeypatch.setattr(kernel, "MAX_CACHED_JOBS", 3)
    stored, known = fits()["A100"].to_json(), traits("A100")
    jobs = [(name, Traits(known[name].values)) for name in sorted(known)[:3]]
    jobs += [(None, jobs[0][1]), (jobs[0][0], jobs[1][1])]  # names and traits of others: each counts
    fit = KernelFit.from_json(stored)
    pairs = [(*victim, *partner) for victim in jobs for partner in jobs]
    assert [fit.speed(*pair) for pair in pairs] == [KernelFit.from_json(stored).speed(*pair) for pair in pairs]


def test_fits_by_name_do_not_know_other_workloads():
    assert fits()["V100"].cost(TrueActivity("nobody", 0.5), TrueActivity("LM|5", 0.5)) is None


def test_a_sensitivity_depends_on_seed_and_job_only():
    drawn = [draw_sensitivity(7, job, 0.5) for job in range(400)]
    assert drawn == [draw_sensitivity(7, job, 0.5) for job in range(400)]
    assert draw_sensitivity(8, 0, 0.5) != drawn[0]
    assert 0.85 < statistics.median(drawn) < 1.15
    assert draw_sensitivity(7, 0, 0.0) == 1.0


def test_pairs_are_read_from_csv(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("# ours\nfirst,second,speed_first,speed_second\na,b,0.5,0.9\n")
    assert read_pairs(path) == [("a", "b", 0.5, 0.9)]
    path.write_text("first,second,speed_first,speed_second\na,b,0.5,0\n")
    with pytest.raises(UsageError, match=r"pair 1 .* a speed is not above 0"):
        read_pairs(path)
    with pytest.raises(UsageError, match="cannot read"):
        read_pairs(tmp_path / "none.csv")
