"""Repartitions through a driver that refuses, is busy, or was changed by others."""

from __future__ import annotations

import pytest

from cotenant.core.errors import BackendError, NotPermitted
from cotenant.core.mig import MigGpu, layout_texts, parse_layout, parse_profiles
from cotenant.core.units import GiB
from cotenant.gpus.mig_control import repartition

PROFILES = parse_profiles([("1g.5gb", 5 * GiB), ("3g.20gb", 20 * GiB), ("4g.20gb", 20 * GiB), ("7g.40gb", 40 * GiB)])
HALVES = ("4g.20gb:0", "3g.20gb:4")
WHOLE = ("7g.40gb:0",)


class Driver:
    """The instances of one GPU, and calls that fail: {call and instance: exception}."""

    def __init__(self, *texts, refuses=(), pids=(), incomplete=(), foreign="", ignores=()):
        self.texts = list(texts)
        self.refuses = dict(refuses)
        self.pids = pids
        self.incomplete = list(incomplete)
        self.foreign = foreign
        self.ignores = ignores
        self.calls = []

    def gpus(self):
        self._called("gpus")
        layout, incomplete = parse_layout(self.texts, PROFILES), parse_layout(self.incomplete, PROFILES)
        gpu = MigGpu(
            uuid="GPU-0", index=0, profiles=PROFILES, layout=layout, incomplete=incomplete, foreign=self.foreign
        )
        return (gpu,)

    def process_ids(self, gpu_uuid):
        assert gpu_uuid == "GPU-0"
        self._called("process_ids")
        return self.pids

    def destroy(self, gpu_uuid, instance):
        assert gpu_uuid == "GPU-0"
        self._called(f"destroy {instance.text}")
        held = self.texts if instance.text in self.texts else self.incomplete
        held.remove(instance.text)

    def create(self, gpu_uuid, instance):
        assert gpu_uuid == "GPU-0"
        self._called(f"create {instance.text}")
        if instance.text not in self.ignores:
            parse_layout([*self.texts, instance.text], PROFILES)
            self.texts.append(instance.text)

    def _called(self, call):
        self.calls.append(call)
        if call in self.refuses:
            raise self.refuses[call]

    @property
    def changes(self):
        return [call for call in self.calls if call.startswith(("create", "destroy"))]


def changed(driver, before=HALVES, after=WHOLE, **how):
    return repartition(driver, "GPU-0", before, after, **how)


def test_instances_are_destroyed_before_others_are_created():
    driver = Driver(*HALVES)
    assert changed(driver) == (WHOLE, None)
    assert driver.changes == ["destroy 4g.20gb:0", "destroy 3g.20gb:4", "create 7g.40gb:0"]


def test_instances_that_both_layouts_have_stay():
    driver = Driver(*HALVES)
    after = ("3g.20gb:4", "1g.5gb:0")
    assert changed(driver, HALVES, after) == (("1g.5gb:0", "3g.20gb:4"), None)
    assert driver.changes == ["destroy 4g.20gb:0", "create 1g.5gb:0"]


def test_a_driver_that_refuses_to_create_leaves_the_old_layout():
    driver = Driver(*HALVES, refuses={"create 7g.40gb:0": BackendError("cannot create `7g.40gb:0`: no room")})
    assert changed(driver) == (HALVES, "cannot create `7g.40gb:0`: no room")


def test_what_was_created_is_destroyed_when_a_later_one_is_refused():
    driver = Driver(*WHOLE, refuses={"create 3g.20gb:4": BackendError("no")})
    assert changed(driver, WHOLE, HALVES) == (WHOLE, "no")
    assert driver.changes[-2:] == ["destroy 4g.20gb:0", "create 7g.40gb:0"]


def test_a_busy_instance_leaves_the_old_layout():
    busy = BackendError("cannot destroy `3g.20gb:4`: in use")
    driver = Driver(*HALVES, refuses={"destroy 3g.20gb:4": busy})
    assert changed(driver) == (HALVES, "cannot destroy `3g.20gb:4`: in use")


def test_what_cannot_be_restored_is_said():
    refuses = {"create 7g.40gb:0": BackendError("no room"), "create 4g.20gb:0": BackendError("no memory")}
    found = changed(Driver(*HALVES, refuses=refuses))
    assert found == (("3g.20gb:4",), "no room; not restored: no memory")


@pytest.mark.parametrize(
    ("driver", "message"),
    [
        pytest.param(
            Driver("7g.40gb:0"), "changed by others: found 7g.40gb:0, wanted 1g.5gb:0, 3g.20gb:4", id="another layout"
        ),
        pytest.param(Driver("1g.5gb:0"), "changed by others: found 1g.5gb:0", id="an instance is gone"),
        pytest.param(
            Driver("1g.5gb:0", "3g.20gb:4", foreign="`3g.20gb:4` is divided"), "`3g.20gb:4` is divided", id="divided"
        ),
        pytest.param(
            Driver("1g.5gb:0", incomplete=["3g.20gb:4"]), "3g.20gb:4 without compute instance", id="half made"
        ),
        pytest.param(
            Driver("1g.5gb:0", "3g.20gb:4", pids=range(10, 17)), "use the GPU: 10, 11, 12, 13, 14, ...", id="busy"
        ),
        pytest.param(
            Driver(refuses={"gpus": NotPermitted("cannot list instances: no permission")}),
            "cannot list instances: no permission",
            id="not root",
        ),
    ],
)
def test_a_gpu_that_is_not_as_it_was_is_left_alone(driver, message):
    before = ("1g.5gb:0", "3g.20gb:4")
    found = repartition(driver, "GPU-0", before, ("4g.20gb:0",))
    assert message in found.error
    assert driver.changes == []


def test_a_gpu_that_is_gone_is_said():
    assert repartition(Driver(), "GPU-9", HALVES, WHOLE) == (HALVES, "GPU GPU-9 is not in MIG mode, or gone")


def test_a_layout_that_is_there_already_needs_no_change():
    driver = Driver(*WHOLE)
    assert changed(driver) == (WHOLE, None)
    assert driver.changes == []


def test_a_driver_that_does_less_than_it_says_is_found_out():
    found = changed(Driver(*HALVES, ignores=WHOLE))
    assert found == ((), "the driver shows no instance instead of 7g.40gb:0")


SMALL = tuple(f"1g.5gb:{place}" for place in range(7))


@pytest.mark.parametrize("left", range(8))
@pytest.mark.parametrize("made", range(3))
def test_a_repartition_that_was_cut_off_goes_on(left, made):
    """The process ended when it had destroyed some of seven instances, or all of them and had created some of two."""
    texts = SMALL[:left] if left else HALVES[:made]
    driver = Driver(*texts)
    assert changed(driver, SMALL, HALVES, is_resumed=True) == (HALVES, None)
    assert layout_texts(driver.gpus()[0].layout) == HALVES
    if left not in (0, 7) or (not left and made == 1):
        assert "changed by others" in changed(Driver(*texts), SMALL, HALVES).error


def test_an_instance_that_was_being_made_is_made_anew():
    driver = Driver("4g.20gb:0", incomplete=["3g.20gb:4"])
    assert changed(driver, SMALL, HALVES, is_resumed=True) == (HALVES, None)
    assert driver.changes == ["destroy 3g.20gb:4", "create 3g.20gb:4"]


def test_a_resumed_repartition_leaves_the_layout_of_others_alone():
    driver = Driver("7g.40gb:0")
    found = changed(driver, SMALL, HALVES, is_resumed=True)
    assert found.error.startswith("its layout was changed by others: found 7g.40gb:0")
    assert driver.changes == []
