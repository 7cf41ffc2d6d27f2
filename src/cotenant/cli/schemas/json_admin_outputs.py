"""What `--json` prints of the verbs of administrators: daemon, config, token, mig, prune, doctor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from cotenant.daemon.api.schemas import answers, json_objects


class PruneOutput(TypedDict):
    """How much was removed, or would be."""

    jobs: int
    bytes: int


class EventRepair(TypedDict):
    """What replays do with an event instead of reading it."""

    is_replaced: bool
    cause: str
    error: str
    trace: str


class RepairedEvent(TypedDict):
    """An event of the journal."""

    seq: int
    type: str
    job_id: int
    body: Annotated[str | None, "JSON as it was written; null where the row is gone"]
    problem: Annotated[str | None, "why it cannot be read or applied"]
    impact: Annotated[str, "what is lost without it"]
    repair: EventRepair | None


class RepairOutput(TypedDict, total=False):
    """`cotenant daemon repair`: `events`, or with --event `event` and `backup`."""

    events: list[RepairedEvent]
    event: RepairedEvent
    backup: Annotated[str | None, "copy of the journal before the change"]


class TokensOutput(TypedDict):
    """Tokens, without their text."""

    tokens: list[json_objects.TokenView]


class TokenOutput(TypedDict):
    """A new token with its text."""

    token: json_objects.NewToken


class ConfigSetting(TypedDict):
    """A value of the configuration."""

    section: str
    key: str
    value: Any
    origin: Annotated[str, "`default`, a file, or an environment variable"]


class ConfigOutput(TypedDict):
    """The configuration in effect."""

    settings: list[ConfigSetting]


class CheckOutput(TypedDict):
    """The files that were checked."""

    files: list[str]
    ok: bool


class Finding(TypedDict):
    """One check of the machine."""

    subject: str
    severity: Annotated[str, "`ok`, `warning` or `problem`"]
    detail: str
    advice: str | None


class PatchView(TypedDict):
    """A function that a trace replaces."""

    phase: str
    target: str
    reason: str
    source: str
    missing: Annotated[str, "what happens if the installed version has no such target"]
    is_present: Annotated[bool | None, "null: the module is not loaded"]


class DoctorOutput(TypedDict, total=False):
    """All checks; with --patches, `patches` in their place."""

    findings: list[Finding]
    patches: list[PatchView]


class ProposedMigInstance(TypedDict):
    """One instance of a layout."""

    profile: str
    start: int
    memory_bytes: int
    job_id: int | None


class MigPlanOutput(TypedDict):
    """The proposed layout."""

    instances: list[ProposedMigInstance]
    placed: int
    waiting: int
    speed: Annotated[float, "sum of the jobs' predicted relative speeds"]


class MigApplyOutput(TypedDict):
    """The commands, and whether they were run."""

    done: bool
    commands: list[list[str]]


class DaemonOutput(TypedDict):
    """A daemon that was started by --detach."""

    pid: int
    socket: str
    log: str


class UnitOutput(TypedDict):
    """A systemd unit."""

    unit: str


class PidOutput(TypedDict):
    """The process that was stopped."""

    pid: int


ADMIN_OUTPUTS: Mapping[str, Any] = {
    "mig plan": MigPlanOutput,
    "mig apply": MigApplyOutput,
    "daemon": DaemonOutput,
    "daemon repair": RepairOutput,
    "prune": PruneOutput,
    "daemon status": answers.StatusAnswer,
    "daemon stop": PidOutput,
    "daemon unit": UnitOutput,
    "config show": ConfigOutput,
    "config check": CheckOutput,
    "token create": TokenOutput,
    "token list": TokensOutput,
    "token revoke": TokensOutput,
    "doctor": DoctorOutput,
}
"""By verb."""
