"""What to do about an environment of gym or Gymnasium that is not registered: which package has it.

Gymnasium 1.0 and newer registers no environment of an installed package before the package is imported.
Source: gymnasium/envs/registration.py, `_check_name_exists`, `_check_namespace_exists`, `_check_version_exists`.
"""

from __future__ import annotations

import importlib.metadata
import re

_ERRORS = frozenset(("gym.error", "gymnasium.error"))
_NO_ENVIRONMENT = frozenset(("NameNotFound", "NamespaceNotFound", "UnregisteredEnv"))
_OTHER_VERSION = frozenset(("DeprecatedEnv", "VersionNotFound"))
_NAME = re.compile(r"(?:[Ee]nvironment|[Nn]amespace) (?:version \S+ for )?`?([\w./-]+)`?")
_PACKAGES = (
    (r"MiniGrid|BabyAI", "minigrid"),
    (r"ALE|\w+(NoFrameskip|Deterministic)|\w+-ram", "ale-py"),
    (r"(maze2d|antmaze|kitchen|pen|door|hammer|relocate|\w+-(random|medium|expert))\b", "d4rl"),
    (r"Fetch|Hand[A-Z]|PointMaze|AntMaze|Adroit|FrankaKitchen", "gymnasium-robotics"),
    (r"HalfCheetah|Hopper|Walker2d|Ant\b|Humanoid|Swimmer|Reacher|Pusher|Inverted\w*Pendulum", "mujoco"),
    (r"LunarLander|BipedalWalker|CarRacing", "box2d"),
    (r"\w*Bullet", "pybullet"),
    (r"SuperMarioBros", "gym-super-mario-bros"),
    (r"procgen", "procgen"),
    (r"Vizdoom", "vizdoom"),
    (r"(highway|merge|roundabout|parking|intersection)\b", "highway-env"),
    (r"dm_control", "shimmy"),
    (r"Meta-World", "metaworld"),
    (r"Crafter", "crafter"),
)
"""By the beginning of a name: the package that has such environments."""


def hint_for(error: BaseException) -> str | None:
    """The hint; None for an error of another kind."""
    kind = type(error)
    if kind.__module__ not in _ERRORS:
        return None
    library = kind.__module__.partition(".")[0]
    if kind.__name__ in _OTHER_VERSION:
        return f"{_installed(library)}: is the script for another version? `--python PATH` names the job's own"
    if kind.__name__ not in _NO_ENVIRONMENT:
        return None
    match = _NAME.search(str(error))
    name = match[1] if match else ""
    package = next((package for pattern, package in _PACKAGES if re.match(pattern, name)), None)
    if package is None:
        return f"a package of the job has `{name}`: install it where the script runs, and import it in the script"
    if _version(package) is None:
        return f"`{package}` has such environments: install it where the script runs"
    return (
        f"`{package}` is installed and has such environments; {_installed(library)}, where those of Gymnasium 1.0 and "
        f"newer need `import {package.replace('-', '_')}` first: is the script for an older one?"
    )


def _installed(library: str) -> str:
    return f"{library} {_version(library) or '(unknown version)'} is installed"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
