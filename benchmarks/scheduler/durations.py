"""How well are durations predicted, from history, from steps told, and from the time that a job has run?

    python -m benchmarks.scheduler.durations [--bootstraps 40] [--quick] [--write] [--data FOLDER]

History: the workloads of CARMA's traces were timed three times (the thesis, CARMA's README, AEGIS), on the same model
of GPU; one or two of these predict another one. Unknown work: what is left of a job after so much work, on jobs that
the law was not fitted to: the second half of Philly, Alibaba's PAI (run times on an A100) and its pods with GPUs that
succeeded; `rule` is the expectation of an hour, or half as long again. Steps: after bootstraps of t1 with a hidden
factor on each job's slowdown, the time alone that completed runs are taken for, without and with steps told.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks._lib.results import add_write_option, commit, today, write_result
from cotenant.scheduling.prediction.durations import duration_of_runs, unknown_left
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.sim import cluster, traces
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.simulate import simulate
from cotenant.sim.traces.transforms import resampled

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
CARMA = ("philly_trace_t1", "philly_trace_t2", "philly_heavy_60_tasks", "philly_mix_90_tasks")
SOURCES = ("exclusive_min_thesis", "exclusive_min_readme", "exclusive_min_aegis")
WORKED_S = (0.0, 600.0, 1800.0, 7200.0, 43200.0)
SEED = 1000
SENSITIVITY_SD = 0.2


def timed_thrice(data: Path) -> list[list[float]]:
    """Minutes of each workload of CARMA's traces that all sources have."""
    found: dict[tuple[str, ...], list[float]] = {}
    for name in CARMA:
        with (data / "carma" / "traces" / f"{name}.csv").open(newline="", encoding="utf-8") as lines:
            for cells in csv.DictReader(lines):
                key = tuple(cells[column] for column in ("workload", "dataset", "batch", "epochs"))
                found[key] = [float(cells[source]) for source in SOURCES if cells[source]]
    return [minutes for minutes in found.values() if len(minutes) == len(SOURCES)]


def history_rows(workloads: Sequence[Sequence[float]]) -> Iterator[str]:
    yield "| runs known | predictions | mean log error | below the lower end | above the upper end | within |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for count in (1, 2):
        errors, below, above = [], [], []
        for minutes in workloads:
            for known in itertools.combinations(range(len(minutes)), count):
                found = duration_of_runs([minutes[index] for index in known])
                assert found is not None
                for index in set(range(len(minutes))) - set(known):
                    errors.append(abs(math.log(minutes[index] / found.expected_s)))
                    below.append(minutes[index] < found.low_s)
                    above.append(minutes[index] > found.high_s)
        shares = (statistics.mean(below), statistics.mean(above))
        cells = [f"{statistics.mean(errors):.2f}", *(f"{share:.0%}" for share in (*shares, 1 - sum(shares)))]
        yield f"| {count} | {len(errors)} | {' | '.join(cells)} |"


def read(data: Path, name: str, column: str, wanted: Callable[[Mapping[str, str]], bool]) -> list[float]:
    with gzip.open(data / "traces" / name, "rt", encoding="utf-8", newline="") as lines:
        found = [float(cells[column]) for cells in csv.DictReader(lines) if cells[column] and wanted(cells)]
    return [duration_s for duration_s in found if duration_s > 0]


def unknown_rows(data: Path) -> Iterator[str]:
    philly = read(data, "philly_jobs.csv.gz", "duration_s", lambda _: True)
    sets = {
        "Philly, second half": philly[len(philly) // 2 :],
        "PAI": read(data, "hydra_pai2020_cases.csv.gz", "dur_a100_s", lambda _: True),
        "Alibaba's pods": read(
            data,
            "alibaba2023_openb_pods.csv.gz",
            "duration_s",
            lambda cells: (cells["variant"], cells["status"]) == ("default", "Succeeded") and int(cells["n_gpus"]) > 0,
        ),
    }
    yield "| jobs | worked | number | below the lower end | above the upper end | within |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, durations_s in sets.items():
        for worked_s in WORKED_S:
            left_s = [duration_s - worked_s for duration_s in durations_s if duration_s > worked_s]
            if len(left_s) < 30:
                continue
            low_s, _, high_s = unknown_left(worked_s)
            below = statistics.mean(value < low_s for value in left_s)
            above = statistics.mean(value > high_s for value in left_s)
            cells = " | ".join(f"{share:.0%}" for share in (below, above, 1 - below - above))
            yield f"| {name} | {worked_s / 3600:.2g} h | {len(left_s)} | {cells} |"


def steps_rows(count: int) -> Iterator[str]:
    yield "| steps told | runs | mean log error of the time alone | P90 |"
    yield "| --- | --- | --- | --- |"
    gpus = cluster.parse("4xA100-40GB")
    for reports_steps in (False, True):
        errors = []
        for number in range(count):
            trace, history = resampled(traces.load("t1"), seed=SEED + number), WorkloadHistory()
            config = SimulationConfig(sensitivity_sd=SENSITIVITY_SD, reports_steps=reports_steps)
            simulate(
                trace, gpus, "marginal-gain", estimator="cotenant", max_slowdown=1.5, config=config, history=history
            )
            truth = {
                trace.workloads[workload]: duration_s
                for workload, duration_s in zip(trace.workload_of, trace.duration_s, strict=True)
            }
            for key, record in history.records().items():
                name = next((name for name in truth if key.endswith(f"/{name}.py")), None)
                errors += [abs(math.log(run_s / truth[name])) for run_s in record.durations_s if name is not None]
        errors.sort()
        p90 = errors[int(0.9 * len(errors))]
        yield f"| {'yes' if reports_steps else 'no'} | {len(errors)} | {statistics.mean(errors):.3f} | {p90:.3f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstraps", type=int, default=40, help="bootstraps of t1 (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="two bootstraps")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of `carma` and `traces`")
    add_write_option(parser)
    args = parser.parse_args()
    if not (args.data / "carma").is_dir():
        print(f"skipped: no published measurements in `{args.data}`; set --data FOLDER")
        return 0
    lines = ["## From history", "", *history_rows(timed_thrice(args.data)), ""]
    lines += ["## What is left of unknown work", "", *unknown_rows(args.data), ""]
    lines += ["## From steps told", "", *steps_rows(2 if args.quick else args.bootstraps), ""]
    print("\n".join(lines))
    if args.write:
        head = [f"# Durations, {today()}", "", f"Commit {commit()}. Seed {SEED}, hidden factor {SENSITIVITY_SD:g}."]
        head += [f"Repeat with `python -m benchmarks.scheduler.durations --bootstraps {args.bootstraps} --write`.", ""]
        write_result("durations", "\n".join([*head, *(__doc__ or "").split("\n\n")[2].splitlines(), "", *lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
