"""The registered policies: one line each. Other distributions add theirs by entry points of group `cotenant.policies`.

A policy is registered by a factory: a callable with keyword-only, annotated options that returns anything with `name`
and `decide`, see `placement.policy.Policy`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from cotenant.core import codec
from cotenant.core.errors import UsageError
from cotenant.core.registry import Registry
from cotenant.scheduling.placement.policy import Policy

_HERE = "cotenant.scheduling.policies"

POLICIES: Registry[Callable[..., Policy]] = Registry(
    "policy",
    "cotenant.policies",
    {
        "aegis": f"{_HERE}.aegis:aegis",
        "best-fit": f"{_HERE}.memory_based:best_fit",
        "carma": f"{_HERE}.carma:carma",
        "exclusive": f"{_HERE}.memory_based:exclusive",
        "fgd": f"{_HERE}.fgd:fgd",
        "first-fit": f"{_HERE}.memory_based:first_fit",
        "gandiva": f"{_HERE}.gandiva:gandiva",
        "horus": f"{_HERE}.horus:horus",
        "least-utilized": f"{_HERE}.memory_based:least_utilized",
        "lucid": f"{_HERE}.lucid:lucid",
        "marginal-gain": f"{_HERE}.marginal_gain:marginal_gain",
        "most-memory": f"{_HERE}.memory_based:most_memory",
        "most-utilized": f"{_HERE}.memory_based:most_utilized",
        "round-robin": f"{_HERE}.memory_based:round_robin",
        "sjf-bsbf": f"{_HERE}.sjf_bsbf:sjf_bsbf",
        "tensorshare": f"{_HERE}.tensorshare:tensorshare",
        "thesis-lug": f"{_HERE}.thesis:lug",
        "thesis-magm": f"{_HERE}.thesis:magm",
        "thesis-mug": f"{_HERE}.thesis:mug",
        "thesis-obf": f"{_HERE}.thesis:obf",
        "thesis-off": f"{_HERE}.thesis:off",
        "thesis-olug": f"{_HERE}.thesis:olug",
        "thesis-owf": f"{_HERE}.thesis:owf",
        "thesis-rr": f"{_HERE}.thesis:rr",
        "tiresias": f"{_HERE}.tiresias:tiresias",
    },
)

_ALIASES = {
    "least-utilised": "least-utilized",
    "lug": "least-utilized",
    "magm": "most-memory",
    "most-utilised": "most-utilized",
    "mug": "most-utilized",
    "rr": "round-robin",
    "worst-fit": "most-memory",
}
"""Names from the literature, and British spellings."""


def policies() -> tuple[str, ...]:
    """Names of all policies, sorted; some have aliases too."""
    return tuple(sorted(POLICIES.names()))


def options(name: str) -> Mapping[str, object]:
    """The options of a policy and their defaults.

    Raises:
        UnknownName: no such policy.
        PluginError: another distribution declares it, but it cannot be imported.
    """
    return {option.name: option.default for option in inspect.signature(_factory(name)).parameters.values()}


def create(name: str, options: Mapping[str, object] | None = None) -> Policy:
    """The policy of that name, with `options` over its defaults.

    Raises:
        UnknownName: no such policy.
        PluginError: another distribution declares it, but it cannot be imported.
        UsageError: it has no such option, or not with this value.
    """
    factory = _factory(name)
    types = get_type_hints(factory)
    return factory(**{key: _checked(name, key, value, types) for key, value in (options or {}).items()})


def _factory(name: str) -> Callable[..., Policy]:
    return POLICIES.get(_ALIASES.get(name, name))


def _checked(name: str, key: str, value: object, types: Mapping[str, Any]) -> object:
    known = sorted(types.keys() - {"return"})
    if key not in known:
        close = difflib.get_close_matches(key, known, n=1)
        raise UsageError(
            f"policy `{name}` has no option `{key}` (known: {', '.join(known)})",
            hint=f"did you mean `{close[0]}`?" if close else None,
        )
    try:
        return codec.decode(types[key], value)
    except codec.CodecError as error:
        wrong = str(error).removeprefix("`value` ")
        raise UsageError(f"option `{key}` of policy `{name}` {wrong}") from error
