"""`cotenant study collocate --install` and `--check`: the table that the daemon predicts with, from a study's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cotenant.cli.options import flag, option
from cotenant.cli.output import note
from cotenant.cli.parameter_types import PATH
from cotenant.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """The table that is fitted to the rows."""

    install: bool = flag(
        "--install", help="Fit the rows, and write the table where the daemon's configuration reads it."
    )
    check: bool = flag("--check", help="Fit the rows, and compare what ships with them.")
    table: Path | None = option(
        "--table",
        type=PATH,
        metavar="FILE",
        help="With --install: write it there; by default `interference.json` beside the configuration file.",
    )
    allow_simulated: bool = flag("--allow-simulated", help="With --install: rows of a simulated GPU, too.")

    @property
    def is_wanted(self) -> bool:
        """Whether a table is to be fitted."""
        return self.install or self.check

    def refuse_meaningless(self) -> None:
        """Refuse options without an effect.

        Raises:
            UsageError: the message names the option.
        """
        if not self.install and (self.table is not None or self.allow_simulated):
            name = "--allow-simulated" if self.table is None else "--table"
            raise UsageError(f"`{name}` needs `--install`", hint="add it")


def use_rows(rows: Sequence[Mapping[str, str]], source: Path, options: FitOptions) -> dict[str, Any]:
    """Fit the rows, check what ships against them and install the table, as the options say; what JSON says of it.

    Raises:
        CotenantError: nothing can be fitted, or the table is of a simulated GPU, or cannot be written.
    """
    from cotenant.study.collocation_report import completed_rows
    from cotenant.study.interference_fit import fit_table, groups_by_way
    from cotenant.study.interference_install import default_path, install_table
    from cotenant.study.table_check import check_assumptions

    if not options.is_wanted:
        return {}
    complete = completed_rows(rows)
    table = fit_table(complete, source)
    found: dict[str, Any] = {"sharing_modes": list(table.ways), "workloads": len(table.workloads)}
    if options.check:
        checks = check_assumptions(table, groups_by_way(complete))
        found["checks"] = [asdict(check) for check in checks]
        for check in checks:
            note(check.text)
    if options.install:
        path = install_table(table, options.table or default_path(), allow_simulated=options.allow_simulated)
        found["table"] = str(path)
        note(f"installed {len(table.workloads)} workloads, {', '.join(table.ways) or 'MIG only'}: {path}")
        note("a daemon reads it when it starts")
    return found
