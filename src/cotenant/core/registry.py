"""Plug-ins by name: those of this package, and those that other distributions declare as entry points.

A room makes one `Registry` for each kind of plug-in and names its own in it, one line each, as `module:attribute`, so
that nothing is imported before it is used. Another distribution adds one by an entry point of the registry's group:

    [project.entry-points."cotenant.policies"]
    my-policy = "my_package.policies:my_policy"

Installed distributions are searched only for a name that is not built in, or when all names are listed: the search
reads one file for each installed distribution. Resolving a name imports code, as `import` does; it happens when a
configuration or a request is read, never within a decision.
"""

from __future__ import annotations

import importlib
import typing
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from cotenant.core.errors import PluginError, UnknownName

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Registry(Generic[T]):
    """The plug-ins of one kind.

    Attributes:
        kind: what a plug-in of it is called in messages, e.g. `GPU backend`.
        group: the group of entry points, e.g. `cotenant.gpu_backends`.
    """

    def __init__(self, kind: str, group: str, builtin: Mapping[str, str | T]) -> None:
        """`builtin` maps names to plug-ins, or to where they are: `module:attribute`."""
        self.kind = kind
        self.group = group
        self._builtin = dict(builtin)
        self._installed: dict[str, EntryPoint] = {}

    @property
    def builtin_names(self) -> tuple[str, ...]:
        """Names of this package's own plug-ins, in the order of their declaration; searches nothing."""
        return tuple(self._builtin)

    def names(self) -> tuple[str, ...]:
        """All names: the built-in ones in the order of their declaration, then those of other distributions, sorted."""
        self._search()
        return (*self._builtin, *sorted(self._installed))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self._builtin or (isinstance(name, str) and self._find(name) is not None)

    def get(self, name: str) -> T:
        """The plug-in of that name, imported if need be.

        Raises:
            UnknownName: there is none; the message lists all names.
            PluginError: another distribution declares it, but it cannot be imported.
        """
        if name in self._builtin:
            found = self._builtin[name]
            if isinstance(found, str):
                # Not stored: Python keeps the module, and a test may replace the attribute.
                return typing.cast("T", _imported(found))
            return found
        entry_point = self._find(name)
        if entry_point is None:
            raise UnknownName(self.kind, name, self.names())
        try:
            return typing.cast("T", entry_point.load())
        except Exception as error:
            raise PluginError(
                f"{self.kind} `{name}` of {_provider(entry_point)} cannot be loaded: {error}",
                hint=f"update or uninstall {_provider(entry_point)}",
            ) from error

    def provider(self, name: str) -> str:
        """The distribution that a plug-in comes from, for people: `cotenant`, or e.g. `my-package 1.0`."""
        entry_point = None if name in self._builtin else self._find(name)
        return "cotenant" if entry_point is None else _provider(entry_point)

    def _find(self, name: str) -> EntryPoint | None:
        if name not in self._installed:
            self._search()
        return self._installed.get(name)

    def _search(self) -> None:
        from importlib.metadata import entry_points

        # A built-in name cannot be replaced: what `best-fit` means must not depend on what else is installed.
        found = entry_points(group=self.group)
        self._installed = {point.name: point for point in found if point.name not in self._builtin}


def _imported(target: str) -> typing.Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _provider(entry_point: EntryPoint) -> str:
    distribution = entry_point.dist
    return entry_point.value if distribution is None else f"{distribution.name} {distribution.version}"
