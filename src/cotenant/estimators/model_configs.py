"""Configurations of models by name: a file or folder, the hub's cache on this machine, or the hub itself if allowed.

The folders are those of huggingface_hub: `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`; `HF_ENDPOINT` and `HF_TOKEN` are
respected. Source: huggingface_hub/constants.py, huggingface_hub/file_download.py, `repo_folder_name`.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from cotenant.core.errors import UsageError
from cotenant.osutil import atomic

_FILE = "config.json"
_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
"""Source: huggingface_hub/utils/_validators.py, `validate_repo_id`: no part begins with `.` or `-`."""
_TIMEOUT_S = 20.0
_MAX_BYTES = 1 << 20
_REFUSED = {
    401: "there is no such model, or it needs a token: set `HF_TOKEN`",
    403: "the model needs an agreement on its page, and the token of an account that agreed: set `HF_TOKEN`",
    404: "the hub has no such model, or the model has no `config.json`",
}


def find_config(name: str, *, allow_network: bool, downloads: Path, env: Mapping[str, str] = os.environ) -> Path:
    """The file `config.json` of a model.

    Args:
        name: a file, a folder, or a name of the hub, such as `gpt2` or `meta-llama/Llama-3.2-1B`.
        allow_network: whether it may be downloaded.
        downloads: the folder that gets a downloaded file.
        env: the environment, whose variables name folders, the hub and a token.

    Raises:
        UsageError: there is none, or it is no JSON object with a `model_type`.
    """
    path = Path(name)
    if path.is_dir():
        path = path / _FILE
    if path.is_file():
        return _checked(path)
    if not _NAME.fullmatch(name) or ".." in name:
        raise UsageError(
            f"no model `{name}`",
            hint="give a name of the hub, e.g. `meta-llama/Llama-3.2-1B`, a folder or a `config.json`",
        )
    cached = _in_cache(name, env)
    if cached is not None:
        return _checked(cached)
    downloaded = downloads / name.replace("/", "--") / _FILE
    if not downloaded.is_file():
        if not allow_network:
            raise UsageError(
                f"the configuration of `{name}` is not on this machine",
                hint="`--allow-network` downloads it, a few kB without weights; or give a folder or a `config.json`",
            )
        _download(name, downloaded, env)
    return _checked(downloaded)


def _in_cache(name: str, env: Mapping[str, str]) -> Path | None:
    """Of the newest snapshot in the hub's cache."""
    home = env.get("HF_HOME") or Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    hub = Path(env.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    files = list((hub / f"models--{name.replace('/', '--')}" / "snapshots").glob(f"*/{_FILE}"))
    return max(files, key=lambda file: file.stat().st_mtime, default=None)


def _download(name: str, to: Path, env: Mapping[str, str]) -> None:
    endpoint = (env.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    if not endpoint.startswith(("https://", "http://")):
        raise UsageError(f"`HF_ENDPOINT` must be a URL, got `{endpoint}`")
    token = env.get("HF_TOKEN")
    request = urllib.request.Request(  # noqa: S310 - its scheme was checked
        f"{endpoint}/{name}/resolve/main/{_FILE}", headers={"Authorization": f"Bearer {token}"} if token else {}
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            data = answer.read(_MAX_BYTES)
    except urllib.error.HTTPError as error:
        why = _REFUSED.get(error.code, f"the hub answered {error.code}")
        raise UsageError(f"the configuration of `{name}` cannot be downloaded: {why}") from error
    except OSError as error:
        raise UsageError(f"`{endpoint}` is out of reach: {error}", hint="give a folder or a `config.json`") from error
    _require_config(data, request.full_url)  # a proxy's page is not to be found in its place the next time
    to.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(to, data, mode=0o644)


def _checked(path: Path) -> Path:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {(error.strerror or str(error)).lower()}") from error
    _require_config(data, str(path))
    return path.absolute()


def _require_config(data: bytes, source: str) -> None:
    hint = "wanted: a `config.json` of transformers"
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"`{source}` is not JSON", hint=hint) from error
    if not isinstance(found, dict) or not isinstance(found.get("model_type"), str):
        raise UsageError(f"`{source}` has no `model_type`", hint=hint)
