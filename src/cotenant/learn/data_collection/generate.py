"""Draws distinct configurations from ranges, with a seed. Pure except for reading and writing the file.

A Latin hypercube: the range of each setting is divided into as many equal parts as there are configurations, and one
value is drawn from each, in a random order. So histograms are flat whatever the seed, and settings are uncorrelated.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from cotenant.core.errors import UsageError
from cotenant.learn.data_collection.configs import Config, config_id, make_config, parse_id
from cotenant.learn.data_collection.ranges import Choice, Range, Ranges, Span
from cotenant.learn.datasets.dataset_row import Extra

_MAX_ROUNDS = 100


def generate(ranges: Ranges, count: int, seed: int) -> tuple[Config, ...]:
    """`count` different configurations.

    An impossible draw (16 heads on a width of 24) takes the nearest possible value; a repeated draw is replaced.

    Raises:
        UsageError: the ranges hold fewer.
    """
    rng = random.Random(f"{ranges.family}/{seed}")  # noqa: S311 (a seed, no secret)
    found: dict[str, Config] = {}
    for _ in range(_MAX_ROUNDS):
        missing = count - len(found)
        if missing <= 0:
            break
        for config in _drawn(ranges, missing, rng):
            found.setdefault(config_id(config), config)
    if len(found) < count:
        raise UsageError(
            f"only {len(found)} different configurations are in `{ranges.name}`, wanted {count}",
            hint="draw fewer, or widen the ranges",
        )
    return tuple(found.values())


def write_configs(path: Path, configs: Sequence[Config], ranges: Ranges, seed: int) -> None:
    """Write one id a line, below a comment with the ranges and the seed."""
    head = f"# {len(configs)} configurations from `{ranges.name}`, seed {seed}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([head, *map(config_id, configs)]) + "\n", encoding="utf-8")


def read_configs(path: Path) -> tuple[Config, ...]:
    """The configurations of a file, in its order.

    Raises:
        UsageError: it cannot be read, or a line is not an id, or a repeated one.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"cannot read `{path}`: {reason.lower()}") from error
    found: dict[str, Config] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if text in found:
            raise UsageError(f"{path}:{number}: `{text}` is there twice")
        try:
            found[text] = parse_id(text)
        except UsageError as error:
            raise UsageError(f"{path}:{number}: {error.message}") from error
    if not found:
        raise UsageError(f"`{path}` holds no configuration", hint="make some with `cotenant learn generate`")
    return tuple(found.values())


def _drawn(ranges: Ranges, count: int, rng: random.Random) -> Iterator[Config]:
    columns = {name: _quantiles(count, rng) for name in ranges.ranges}
    # A setting that is bounded by another is drawn after it.
    ordered = sorted(ranges.ranges.items(), key=lambda item: isinstance(item[1], Span) and item[1].of != "")
    for i in range(count):
        settings: dict[str, Extra] = {}
        for name, range_ in ordered:
            settings[name] = _at(columns[name][i], range_, settings)
        _repair(ranges, settings, {name: column[i] for name, column in columns.items()})
        yield make_config(ranges.family, settings)


def _quantiles(count: int, rng: random.Random) -> list[float]:
    """A random number in each of `count` equal parts of 0..1, in random order."""
    strata = list(range(count))
    rng.shuffle(strata)
    return [(stratum + rng.random()) / count for stratum in strata]


def _at(quantile: float, range_: Range, settings: dict[str, Extra]) -> Extra:
    """The value at a quantile of a range."""
    if isinstance(range_, Choice):
        return range_.values[min(int(quantile * len(range_.values)), len(range_.values) - 1)]
    if quantile < range_.none:
        return 0
    place = (quantile - range_.none) / (1 - range_.none) if range_.none else quantile
    low, high = range_.bounds(settings)
    value = low * ((high + 1) / low) ** place if range_.by == "log" else low + place * (high + 1 - low)
    return min(int(value), high)


def _repair(ranges: Ranges, settings: dict[str, Extra], quantiles: dict[str, float]) -> None:
    """Make the draw possible: heads that divide the width, at least two samples for batch statistics.

    A setting that a shape does not use gets a fixed value, so that no two ids are the same network.
    """
    heads = ranges.ranges.get("heads")
    if heads is not None:
        width = int(settings["width"])
        values = heads.values if isinstance(heads, Choice) else range(heads.low, heads.high + 1)
        fitting = [value for value in values if isinstance(value, int) and value > 0 and width % value == 0] or [1]
        settings["heads"] = fitting[min(int(quantiles["heads"] * len(fitting)), len(fitting) - 1)]
    if settings["shape"] == "conv1d":
        settings["heads"] = 1
    if settings["shape"] == "gpt":
        settings["classes"] = settings["vocabulary"]
    if settings.get("norm") == "batchnorm":
        settings["batch"] = max(int(settings["batch"]), 2)
