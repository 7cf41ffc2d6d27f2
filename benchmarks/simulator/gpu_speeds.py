"""Relative speeds of GPU types from published run times; generates the simulator's table of speeds.

    python -m benchmarks.simulator.gpu_speeds [--quick] [--write] [--write-table] [--data FOLDER]

Speeds are those of one job alone on a whole GPU, relative to its speed on a V100 (AEGIS: on an A100). The speed of a
GPU type is the median over the workloads measured on both types. Its error is leave-one-out: each workload is predicted
by the median of the others; the table gives the median and the 90th percentile of the relative error, and for
comparison the error of assuming equal speed. `--write-table` writes the table into the package.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import platform
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks._lib.results import add_write_option, today, version, write_result
from cotenant.sim.gpu_speeds import SPEEDS_PATH
from cotenant.sim.interference.tables import DATA_PATH, read_csv

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "traces"
FILES = ("gavel_isolated.csv", "hydra_pai2020_cases.csv.gz", "zeus_power.csv.gz")
DIGITS = 4

HEAD = """\
# How fast a job alone is on kinds of GPU. No workload: the median of many, as a part of the speed on a V100. A
# workload: as a part of its own speed on the kind where it has 1. Made by
# `benchmarks/simulator/gpu_speeds.py --write-table`.
# Gavel: isolated throughputs, stanford-futuredata/gavel@c4fa400, MIT licence. Zeus: time per epoch at the full power
# limit, SymbioticLab/Zeus@3df2fc4, Apache-2.0. Hydra: run times of PAI 2020's jobs (CC BY 4.0) by kind,
# dos-lab/Hydra@e89f5b0. AEGIS: run times of workloads_a100.csv and workloads_rtx2080ti.csv.
gpu,workload,speed,source
"""

Ratios = Mapping[str, Mapping[str, float]]
"""GPU type -> workload -> speed relative to a V100."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="no effect: the full run takes a second")
    add_write_option(parser)
    parser.add_argument("--write-table", action="store_true", help="write the table into the package")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the published files")
    args = parser.parse_args()
    missing = [name for name in FILES if not (args.data / name).is_file()]
    if missing:
        print(f"skipped: no {', '.join(missing)} in {args.data}")
        return
    gavel, zeus, hydra = of_gavel(args.data), of_zeus(args.data), of_hydra(args.data)
    lines = errors(gavel, zeus, hydra)
    print("\n".join(lines))
    if args.write_table:
        rows = list(table(gavel, zeus, hydra))
        SPEEDS_PATH.write_text(HEAD + "".join(f"{','.join(row)}\n" for row in rows))
        print(f"wrote {SPEEDS_PATH}: {len(rows)} rows")
    if args.write:
        write_result("gpu-speeds", "\n".join([*heading(), *lines, ""]))


def heading() -> list[str]:
    return [
        "# Relative speeds of GPU types",
        "",
        f"{today()}, {platform.machine()}, Python {platform.python_version()}, cotenant {version('cotenant')}.",
        "Command: `python -m benchmarks.simulator.gpu_speeds --write`.",
        "",
        *(line.strip() for line in (__doc__ or "").split("\n\n")[2].splitlines()),
        "",
    ]


def of_gavel(folder: Path) -> Ratios:
    """26 job types on one GPU, named as in the table of co-located pairs."""
    steps: dict[str, dict[str, float]] = {}
    for row in csv.DictReader((folder / "gavel_isolated.csv").open()):
        if row["n_gpus"] == "1" and float(row["steps_per_s"]) > 0:
            steps.setdefault(row["gpu"], {})[f"{row['job']}|{row['batch']}"] = float(row["steps_per_s"])
    kinds = {"P100": "p100", "K80": "k80"}
    return {
        kind: {name: rate / steps["v100"][name] for name, rate in steps[key].items() if name in steps["v100"]}
        for kind, key in kinds.items()
    }


def of_zeus(folder: Path) -> Ratios:
    """Networks by batch size and optimizer, at the highest power limit of each GPU."""
    epochs: dict[str, dict[str, tuple[float, float]]] = {}
    with gzip.open(folder / "zeus_power.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            name = "|".join(row[key] for key in ("dataset", "network", "batch_size", "optimizer"))
            at_limit = float(row["power_limit"]), float(row["time_per_epoch"])
            known = epochs.setdefault(row["gpu"], {})
            known[name] = max(known.get(name, at_limit), at_limit)
    base = epochs["v100"]
    kinds = {"P100": "p100", "A40": "a40", "RTX6000": "rtx6000"}
    return {
        kind: {name: base[name][1] / seconds for name, (_, seconds) in epochs[key].items() if name in base}
        for kind, key in kinds.items()
    }


def of_hydra(folder: Path) -> Ratios:
    """15,000 jobs of PAI 2020 with their run times on three GPU types; jobs of one workload share one ratio."""
    found: dict[str, dict[str, float]] = {"A100": {}, "RTX2080Ti": {}}
    with gzip.open(folder / "hydra_pai2020_cases.csv.gz", "rt") as file:
        for number, row in enumerate(csv.DictReader(file)):
            base_s = float(row["dur_v100_s"])
            found["A100"][str(number)] = base_s / float(row["dur_a100_s"])
            found["RTX2080Ti"][str(number)] = base_s / float(row["dur_2080ti_s"])
    return found


def of_aegis() -> Mapping[str, float]:
    """Speed on an RTX 2080 Ti over that on an A100, by workload."""
    a100 = {row["name"]: float(row["solo_s"]) for row in read_csv(DATA_PATH / "workloads_a100.csv")}
    small = {row["name"]: float(row["solo_s"]) for row in read_csv(DATA_PATH / "workloads_rtx2080ti.csv")}
    return {name: a100[name] / seconds for name, seconds in small.items() if name in a100}


def table(gavel: Ratios, zeus: Ratios, hydra: Ratios) -> Iterator[tuple[str, str, str, str]]:
    """Rows of the shipped table."""
    yield "V100", "", "1", "base"
    for kind, source, ratios in medians(gavel, zeus, hydra):
        yield kind, "", _number(statistics.median(ratios)), source
    for name in sorted({name for known in gavel.values() for name in known}):
        yield "V100", name, "1", "Gavel"
        for kind, known in gavel.items():
            if name in known:
                yield kind, name, _number(known[name]), "Gavel"
    for name, ratio in sorted(of_aegis().items()):
        yield "A100", name, "1", "AEGIS"
        yield "RTX2080Ti", name, _number(ratio), "AEGIS"


def medians(gavel: Ratios, zeus: Ratios, hydra: Ratios) -> Iterator[tuple[str, str, list[float]]]:
    """(GPU type, source, ratios whose median is its speed)."""
    yield "A100", "Hydra", list(hydra["A100"].values())
    yield "RTX2080Ti", "Hydra", list(hydra["RTX2080Ti"].values())
    yield "P100", "Gavel and Zeus", [*gavel["P100"].values(), *zeus["P100"].values()]
    yield "K80", "Gavel", list(gavel["K80"].values())
    yield "A40", "Zeus", list(zeus["A40"].values())
    yield "RTX6000", "Zeus", list(zeus["RTX6000"].values())


def errors(gavel: Ratios, zeus: Ratios, hydra: Ratios) -> list[str]:
    lines = [
        "| GPU | source | workloads | min, median, max | error of the median | error of 1.0 |",
        "|---|---|---|---|---|---|",
    ]
    every = [*medians(gavel, zeus, hydra), ("RTX2080Ti", "AEGIS, relative to an A100", list(of_aegis().values()))]
    every += [
        ("P100", "Gavel alone", list(gavel["P100"].values())),
        ("P100", "Zeus alone", list(zeus["P100"].values())),
    ]
    for kind, source, ratios in every:
        counts = Counter(ratios)
        missed = [abs(left_out(ratios, counts, count) / count - 1.0) for count in sorted(counts)]
        plain = [abs(1.0 / count - 1.0) for count in counts]
        span = f"{min(ratios):.2f}, {statistics.median(ratios):.2f}, {max(ratios):.2f}"
        lines.append(f"| {kind} | {source} | {len(ratios)} | {span} | {_errors(missed)} | {_errors(plain)} |")
    return [*lines, "", "Errors: median and 90th percentile over distinct ratios."]


def left_out(ratios: list[float], counts: Counter[float], value: float) -> float:
    """The median without this relation; of many thousand it is the same as with it."""
    if len(ratios) > 1000:
        return statistics.median(ratios)
    others = [ratio for ratio, count in counts.items() for _ in range(count - (ratio == value))]
    return statistics.median(others)


def _errors(values: list[float]) -> str:
    return f"{statistics.median(values):.0%}, {statistics.quantiles(values, n=10)[-1]:.0%}"


def _number(value: float) -> str:
    return f"{value:.{DIGITS}g}"


if __name__ == "__main__":
    main()
