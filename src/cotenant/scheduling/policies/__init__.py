"""The registered policies: one line each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from cotenant.core import codec
from cotenant.core.errors import UnknownName, UsageError
from cotenant.scheduling.policies.best_fit import best_fit
from cotenant.scheduling.policies.exclusive import exclusive
from cotenant.scheduling.policies.first_fit import first_fit
from cotenant.scheduling.policies.most_memory import most_memory
from cotenant.scheduling.policy import Policy

_POLICIES: Mapping[str, Callable[..., Policy]] = {
    "best-fit": best_fit,
    "exclusive": exclusive,
    "first-fit": first_fit,
    "most-memory": most_memory,
}


def policies() -> tuple[str, ...]:
    """Names of all policies, sorted."""
    return tuple(sorted(_POLICIES))


def options(name: str) -> Mapping[str, object]:
    """The options of a policy and their defaults.

    Raises:
        UnknownName: no such policy.
    """
    return {each.name: each.default for each in inspect.signature(_factory(name)).parameters.values()}


def create(name: str, options: Mapping[str, object] | None = None) -> Policy:
    """The policy of that name, with `options` over its defaults.

    Raises:
        UnknownName: no such policy.
        UsageError: it has no such option, or not with this value.
    """
    factory = _factory(name)
    kinds = get_type_hints(factory)
    return factory(**{key: _checked(name, key, value, kinds) for key, value in (options or {}).items()})


def _factory(name: str) -> Callable[..., Policy]:
    if name not in _POLICIES:
        raise UnknownName("policy", name, _POLICIES)
    return _POLICIES[name]


def _checked(name: str, key: str, value: object, kinds: Mapping[str, Any]) -> object:
    known = sorted(kinds.keys() - {"return"})
    if key not in known:
        raise UsageError(f"policy `{name}` has no option `{key}` (known: {', '.join(known)})")
    try:
        return codec.decode(kinds[key], value)
    except codec.CodecError as error:
        wrong = str(error).removeprefix("`value` ")
        raise UsageError(f"option `{key}` of policy `{name}` {wrong}") from error
