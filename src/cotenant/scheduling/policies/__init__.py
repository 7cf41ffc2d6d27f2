"""The registered policies: one line each."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from cotenant.core import codec
from cotenant.core.errors import UnknownName, UsageError
from cotenant.scheduling.placement.ranked import Ranked
from cotenant.scheduling.policies.aegis import aegis
from cotenant.scheduling.policies.best_fit import best_fit
from cotenant.scheduling.policies.carma import carma
from cotenant.scheduling.policies.exclusive import exclusive
from cotenant.scheduling.policies.first_fit import first_fit
from cotenant.scheduling.policies.gandiva import gandiva
from cotenant.scheduling.policies.horus import horus
from cotenant.scheduling.policies.least_utilized import least_utilized
from cotenant.scheduling.policies.lucid import lucid
from cotenant.scheduling.policies.marginal_gain import marginal_gain
from cotenant.scheduling.policies.most_memory import most_memory
from cotenant.scheduling.policies.most_utilized import most_utilized
from cotenant.scheduling.policies.round_robin import round_robin
from cotenant.scheduling.policies.sjf_bsbf import sjf_bsbf
from cotenant.scheduling.policies.tiresias import tiresias

_POLICIES: Mapping[str, Callable[..., Ranked]] = {
    "aegis": aegis,
    "best-fit": best_fit,
    "carma": carma,
    "exclusive": exclusive,
    "first-fit": first_fit,
    "gandiva": gandiva,
    "horus": horus,
    "least-utilized": least_utilized,
    "lucid": lucid,
    "marginal-gain": marginal_gain,
    "most-memory": most_memory,
    "most-utilized": most_utilized,
    "round-robin": round_robin,
    "sjf-bsbf": sjf_bsbf,
    "tiresias": tiresias,
}

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
    """Names of all policies, sorted; some go by other names too."""
    return tuple(sorted(_POLICIES))


def options(name: str) -> Mapping[str, object]:
    """The options of a policy and their defaults.

    Raises:
        UnknownName: no such policy.
    """
    return {each.name: each.default for each in inspect.signature(_factory(name)).parameters.values()}


def create(name: str, options: Mapping[str, object] | None = None) -> Ranked:
    """The policy of that name, with `options` over its defaults.

    Raises:
        UnknownName: no such policy.
        UsageError: it has no such option, or not with this value.
    """
    factory = _factory(name)
    kinds = get_type_hints(factory)
    return factory(**{key: _checked(name, key, value, kinds) for key, value in (options or {}).items()})


def _factory(name: str) -> Callable[..., Ranked]:
    name = _ALIASES.get(name, name)
    if name not in _POLICIES:
        raise UnknownName("policy", name, _POLICIES)
    return _POLICIES[name]


def _checked(name: str, key: str, value: object, kinds: Mapping[str, Any]) -> object:
    known = sorted(kinds.keys() - {"return"})
    if key not in known:
        close = difflib.get_close_matches(key, known, n=1)
        raise UsageError(
            f"policy `{name}` has no option `{key}` (known: {', '.join(known)})",
            hint=f"did you mean `{close[0]}`?" if close else None,
        )
    try:
        return codec.decode(kinds[key], value)
    except codec.CodecError as error:
        wrong = str(error).removeprefix("`value` ")
        raise UsageError(f"option `{key}` of policy `{name}` {wrong}") from error
