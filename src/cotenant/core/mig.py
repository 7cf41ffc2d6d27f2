"""MIG: which instances fit together on a GPU, and the layout that serves a queue best.

A layout is a set of instances at placements that do not overlap. Placements are counted in memory slices: 8 on GPUs
with 7 compute slices, 4 on those with 4. An instance of a profile may start only at certain placements. The rules are
the same for A100, H100 and H200, whose profiles differ in memory only.

Source: NVIDIA MIG user guide, "Supported MIG profiles"; `nvidia-smi mig -lgipp`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cotenant.core.errors import UnknownName, UsageError

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

    @property
    def text(self) -> str:
        """As `nvidia-smi mig -cgi` takes it, e.g. `3g.20gb:4`."""
        return f"{self.profile.name}:{self.start}"


Layout = tuple[MigInstance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigGpu:
    """A GPU in MIG mode.

    Attributes:
        layout: its instances that jobs can use, in order of their starts.
        incomplete: instances that lack their compute instance: something ended while it made them.
        profiles: those of its instances that layouts are made of.
        foreign: why its layout must stay as it is, e.g. an instance that is divided further; empty if it need not.
    """

    uuid: str
    index: int
    profiles: tuple[InstanceProfile, ...]
    layout: Layout
    incomplete: Layout = ()
    foreign: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDemand:
    """A waiting job: the bytes that it must find free, and its SM activity on a whole GPU (None: not known).

    `speeds`: measured on instances, by profile, as a share of that on the whole GPU.
    """

    job_id: int
    bytes: int
    smact: float | None = None
    speeds: Mapping[str, float] = field(default_factory=dict)


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
    if all(compute != 1 for _, _, compute, _ in found):
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
    """Speed on such an instance, 0..1 of that on the whole GPU: measured, or its share of the SMs over the SM activity.

    The error is 0.01 to 0.14 on MISO's measurements of its heaviest and its lightest workload on instances of an A100.
    """
    measured = need.speeds.get(profile.name)
    if measured is not None:
        return min(1.0, measured)
    activity = UNKNOWN_ACTIVITY if need.smact is None else need.smact
    return min(1.0, profile.fraction / max(MIN_ACTIVITY, activity))


def plan(queue: Sequence[MigDemand], profiles: Sequence[InstanceProfile]) -> MigPlan:
    """The layout with the highest summed speed of the jobs at the head of `queue`.

    Each job, in order, gets the fastest instance among those it fits into; a job that fits into none is skipped. Among
    equal layouts the one with fewer instances wins, which leaves larger ones for later jobs.

    Raises:
        UsageError: no layout is known for such a GPU.
    """
    plans = [assignment(queue, layout) for layout in layouts(profiles)]
    if not plans:
        raise UsageError("no MIG layout is known for this GPU")
    return max(plans, key=lambda candidate: (round(candidate.speed, 9), -len(candidate.layout)))


def assignment(queue: Sequence[MigDemand], layout: Layout, *, strict_order: bool = False) -> MigPlan:
    """The jobs of `queue` on this layout: each, in order, on the fastest instance that is left and has room for it.

    `strict_order`: no job overtakes one that has no room.
    """
    free = set(range(len(layout)))
    placed = []
    speed = 0.0
    for need in queue:
        if not free:
            break
        fits = [place for place in sorted(free) if layout[place].profile.memory_bytes >= need.bytes]
        if not fits and strict_order:
            break
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


def possible_instances(profiles: Iterable[InstanceProfile]) -> Layout:
    """Every instance that such a GPU can have, in some layout."""
    return tuple(
        MigInstance(profile=profile, start=start)
        for profile in profiles
        for start in _STARTS[profile.of][profile.compute, profile.memory_slices]
    )


def check_layout(layout: Iterable[MigInstance]) -> None:
    """Check that these instances fit together on one GPU, at their placements.

    Raises:
        UsageError: one starts where its profile cannot, or two overlap.
    """
    taken: dict[int, MigInstance] = {}
    for instance in layout:
        profile = instance.profile
        starts = _STARTS.get(profile.of, {}).get((profile.compute, profile.memory_slices), ())
        if instance.start not in starts:
            known = ", ".join(map(str, starts)) or "nowhere"
            raise UsageError(f"`{instance.text}` starts at {instance.start}", hint=f"it can start at {known}")
        for place in range(instance.start, instance.start + profile.memory_slices):
            if place in taken:
                raise UsageError(f"`{instance.text}` overlaps `{taken[place].text}`", hint="see `cotenant mig plan`")
            taken[place] = instance


def parse_layout(texts: Iterable[str], profiles: Sequence[InstanceProfile]) -> Layout:
    """The instances that `MigInstance.text` describes, in order of their starts.

    Raises:
        UnknownName: a profile is unknown.
        UsageError: a text cannot be parsed, or they do not fit together.
    """
    by_name = {profile.name: profile for profile in profiles}
    found = []
    for text in texts:
        name, _, start = text.partition(":")
        if not (start.isascii() and start.isdecimal() and len(start) == 1):
            raise UsageError(f"`{text}` is no instance", hint="write e.g. `3g.20gb:4`: a profile and where it starts")
        if name not in by_name:
            raise UnknownName("MIG profile of this GPU", name, by_name)
        found.append(MigInstance(profile=by_name[name], start=int(start)))
    check_layout(found)
    return by_start(found)


def by_start(layout: Iterable[MigInstance]) -> Layout:
    """The same instances in order of their starts."""
    return tuple(sorted(layout, key=lambda instance: instance.start))


def layout_texts(layout: Iterable[MigInstance]) -> tuple[str, ...]:
    """The texts of the instances, in order of their starts."""
    return tuple(instance.text for instance in by_start(layout))


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
