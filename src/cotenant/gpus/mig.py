"""MIG: the layouts that a GPU allows, the one that serves a queue best, and the commands that create it.

A layout is a set of instances at placements that do not overlap. Placements are counted in memory slices: 8 on GPUs
with 7 compute slices, 4 on those with 4. An instance of a profile may start only at certain placements.

Source: NVIDIA MIG user guide, "Supported MIG profiles"; `nvidia-smi mig -lgipp`.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from cotenant.core.errors import BackendError, UnknownName, UsageError

TIMEOUT_S = 60.0
MIN_ACTIVITY = 0.05
UNKNOWN_ACTIVITY = 0.5
"""For a job whose SM activity is not known."""

_NAME = re.compile(r"^(\d)g\.(\d+)gb$")
# By number of compute slices of the GPU, then (compute slices, memory slices) of an instance: where it may start.
_STARTS: dict[int, dict[tuple[int, int], tuple[int, ...]]] = {
    7: {
        (1, 1): (0, 1, 2, 3, 4, 5, 6),
        (1, 2): (0, 2, 4, 6),
        (2, 2): (0, 2, 4),
        (3, 4): (0, 4),
        (4, 4): (0,),
        (7, 8): (0,),
    },
    4: {(1, 1): (0, 1, 2, 3), (2, 2): (0, 2), (4, 4): (0,)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceProfile:
    """A GPU instance profile: its name, its memory, and how many of the GPU's `of` compute slices it has."""

    name: str
    memory_bytes: int
    compute: int
    memory_slices: int
    of: int

    @property
    def fraction(self) -> float:
        """Its share of the GPU's compute slices, 0..1."""
        return self.compute / self.of


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """An instance at a placement, which is given to the driver: its own choice may leave no room for the next one."""

    profile: InstanceProfile
    start: int


Layout = tuple[MigInstance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDemand:
    """A waiting job: the bytes that it must find free, and its SM activity on a whole GPU (None: not known)."""

    job_id: int
    bytes: int
    smact: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigPlan:
    """A layout, and the jobs that would run on it.

    Attributes:
        placed: (job, index of its instance in `layout`).
        speed: sum of the placed jobs' predicted speeds, each 0..1 of its speed on a whole GPU.
    """

    layout: Layout
    placed: tuple[tuple[int, int], ...]
    speed: float


def parse_profiles(profiles: Sequence[tuple[str, int]]) -> tuple[InstanceProfile, ...]:
    """The instance profiles of a GPU, from (name, bytes), e.g. (`3g.20gb`, 20937965568).

    Profiles with media extensions or graphics are left out.

    Raises:
        UsageError: the GPU has no MIG.
    """
    parsed = [(name, size_bytes, _NAME.match(name)) for name, size_bytes in profiles]
    found = [(name, size_bytes, int(m[1]), int(m[2])) for name, size_bytes, m in parsed if m is not None]
    if not found:
        raise UsageError(
            "this GPU has no MIG profiles", hint="MIG is on A30, A100, H100, H200 and later of their profile"
        )
    of = max(compute for _, _, compute, _ in found)
    unit_gb = min(gigabytes for _, _, compute, gigabytes in found if compute == 1)
    starts = _STARTS.get(of, {})
    usable = []
    for name, size_bytes, compute, gigabytes in found:
        # Profiles of one compute slice differ in memory only: 1g.5gb and 1g.10gb.
        memory = min(2, max(1, round(gigabytes / unit_gb))) if compute == 1 else {2: 2, 3: 4, 4: 4, 7: 8}[compute]
        if (compute, memory) in starts:
            usable.append(
                InstanceProfile(name=name, memory_bytes=size_bytes, compute=compute, memory_slices=memory, of=of)
            )
    return tuple(sorted(usable, key=lambda profile: (-profile.compute, -profile.memory_bytes)))


def layouts(profiles: Sequence[InstanceProfile]) -> tuple[Layout, ...]:
    """All layouts that nothing can be added to, largest instances first; one for each multiset of profiles."""
    if not profiles:
        return ()
    found: dict[tuple[str, ...], Layout] = {}
    for layout in _fillings(tuple(profiles), profiles[0].of, place=0):
        ordered = tuple(sorted(layout, key=_by_size))
        found.setdefault(profile_names(ordered), ordered)
    return tuple(layout for names, layout in found.items() if not _is_extended(names, found))


def profile_names(layout: Layout) -> tuple[str, ...]:
    """The profiles of the instances."""
    return tuple(instance.profile.name for instance in layout)


def _by_size(instance: MigInstance) -> tuple[int, int, int]:
    return -instance.profile.compute, -instance.profile.memory_bytes, instance.start


def _fillings(profiles: tuple[InstanceProfile, ...], of: int, *, place: int) -> Iterator[Layout]:
    """All ways to fill the placements from `place` on, including those that leave `place` empty."""
    width = 8 if of == 7 else of
    if place >= width:
        yield ()
        return
    for profile in profiles:
        if place in _STARTS[of][profile.compute, profile.memory_slices]:
            for rest in _fillings(profiles, of, place=place + profile.memory_slices):
                if profile.compute + sum(other.profile.compute for other in rest) <= of:
                    yield (MigInstance(profile=profile, start=place), *rest)
    yield from _fillings(profiles, of, place=place + 1)


def _is_extended(names: tuple[str, ...], found: Collection[tuple[str, ...]]) -> bool:
    """Whether another layout has these instances and more."""
    return any(len(other) > len(names) and not Counter(names) - Counter(other) for other in found)


def predicted_speed(need: MigDemand, profile: InstanceProfile) -> float:
    """Speed on such an instance, 0..1 of that on the whole GPU: its share of the SMs over the job's SM activity.

    The error is 0.01 to 0.14 on MISO's measurements of its heaviest and its lightest workload on instances of an A100.
    """
    activity = UNKNOWN_ACTIVITY if need.smact is None else need.smact
    return min(1.0, profile.fraction / max(MIN_ACTIVITY, activity))


def plan(queue: Sequence[MigDemand], profiles: Sequence[InstanceProfile]) -> MigPlan:
    """The layout with the highest summed speed of the jobs at the head of `queue`.

    Each job, in order, gets the fastest instance among those it fits into; a job that fits into none is skipped. Among
    equal layouts the one with fewer instances wins, which leaves larger ones for later jobs.

    Raises:
        UsageError: no layout is known for such a GPU.
    """
    plans = [_assign(queue, layout) for layout in layouts(profiles)]
    if not plans:
        raise UsageError("no MIG layout is known for this GPU")
    return max(plans, key=lambda candidate: (round(candidate.speed, 9), -len(candidate.layout)))


def _assign(queue: Sequence[MigDemand], layout: Layout) -> MigPlan:
    free = set(range(len(layout)))
    placed = []
    speed = 0.0
    for need in queue:
        fits = [place for place in sorted(free) if layout[place].profile.memory_bytes >= need.bytes]
        if not fits:
            continue

        def worth(place: int, need: MigDemand = need) -> tuple[float, int, int]:
            """Fastest first, among equally fast ones the smallest, which leaves the larger ones to others."""
            profile = layout[place].profile
            return predicted_speed(need, profile), -profile.compute, -profile.memory_bytes

        chosen = max(fits, key=worth)
        free.remove(chosen)
        placed.append((need.job_id, chosen))
        speed += worth(chosen)[0]
    return MigPlan(layout=layout, placed=tuple(placed), speed=speed)


def layout_of(names: Sequence[str], profiles: Sequence[InstanceProfile]) -> Layout:
    """Placements for these instances.

    Raises:
        UnknownName: a profile is unknown.
        UsageError: they do not fit together; the hint names a similar layout that does.
    """
    known = {profile.name for profile in profiles}
    for name in names:
        if name not in known:
            raise UnknownName("MIG profile of this GPU", name, known)
    wanted = Counter(names)
    allowed = layouts(profiles)
    for layout in allowed:
        if not wanted - Counter(profile_names(layout)):
            return _only(wanted, layout)
    near = max(allowed, key=lambda layout: (sum((wanted & Counter(profile_names(layout))).values()), -len(layout)))
    raise UsageError(
        f"these instances do not fit on one GPU: {', '.join(names)}",
        hint=f"a similar layout: {', '.join(profile_names(near))}",
    )


def _only(wanted: Counter[str], layout: Layout) -> Layout:
    left = Counter(wanted)
    chosen = []
    for instance in layout:
        if left[instance.profile.name] > 0:
            left[instance.profile.name] -= 1
            chosen.append(instance)
    return tuple(chosen)


def commands(index: int, layout: Layout, *, had_instances: bool) -> list[list[str]]:
    """The commands that create the layout on the GPU at `index`, which must be in MIG mode and idle."""
    smi = ["nvidia-smi", "mig", "-i", str(index)]
    clear = [[*smi, "-dci"], [*smi, "-dgi"]] if had_instances else []
    return [*clear, [*smi, "-cgi", ",".join(f"{instance.profile.name}:{instance.start}" for instance in layout), "-C"]]


def apply(index: int, layout: Layout, *, had_instances: bool) -> list[str]:
    """Create the layout; returns the output of each command.

    Raises:
        BackendError: a command failed; the message has its output and how many commands succeeded before.
    """
    outputs: list[str] = []
    for command in commands(index, layout, had_instances=had_instances):
        text = " ".join(command)
        done_before = f"; {len(outputs)} commands succeeded before" if outputs else ""
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BackendError(f"`{text}` does not work: {error}{done_before}") from error
        if done.returncode != 0:
            message = " ".join((done.stderr or done.stdout).split())
            raise BackendError(
                f"`{text}` failed: {message}{done_before}", hint="it needs root, MIG mode, and an idle GPU"
            )
        outputs.append(done.stdout.strip())
    return outputs
