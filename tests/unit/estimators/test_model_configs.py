"""Configurations of models by name: files, the hub's cache, and a hub."""

from __future__ import annotations

import http.server
import json
import re
import threading

import pytest

from cotenant.core.errors import UsageError
from cotenant.estimators.model_configs import find_config

LLAMA = json.dumps({"model_type": "llama"})


def found(name, tmp_path, *, allow_network=False, **env):
    downloads = tmp_path / "downloads"
    return find_config(name, allow_network=allow_network, downloads=downloads, env={"HF_HOME": str(tmp_path), **env})


def test_a_folder_or_a_file_has_the_configuration(tmp_path):
    (tmp_path / "config.json").write_text(LLAMA)
    assert found(str(tmp_path), tmp_path) == tmp_path / "config.json"
    assert found(str(tmp_path / "config.json"), tmp_path) == tmp_path / "config.json"


@pytest.mark.parametrize("variable", ["HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"])
def test_the_hubs_cache_is_where_its_variables_say(tmp_path, variable):
    hub = {"HF_HOME": "hub", "HF_HUB_CACHE": ".", "XDG_CACHE_HOME": "huggingface/hub"}[variable]
    file = tmp_path / hub / "models--meta--llama" / "snapshots" / "abc" / "config.json"
    file.parent.mkdir(parents=True)
    file.write_text(LLAMA)
    env = {"HF_HOME": ""} if variable != "HF_HOME" else {}
    assert found("meta/llama", tmp_path, **env, **{variable: str(tmp_path)}) == file


@pytest.mark.parametrize("name", ["./absent", "../up", "/root/absent", "a/b/c", "meta/-llama", "meta/.."])
def test_what_is_no_name_of_the_hub_is_not_looked_for_there(tmp_path, name):
    with pytest.raises(UsageError, match=f"no model `{re.escape(name)}`"):
        found(name, tmp_path)


def test_nothing_is_downloaded_unless_allowed(tmp_path):
    with pytest.raises(UsageError, match="`meta/llama` is not on this machine") as caught:
        found("meta/llama", tmp_path)
    assert "`--allow-network`" in caught.value.hint


@pytest.mark.parametrize("name", ["../secrets", "a/b/c", "http://host/x", "", "meta/..", "a b"])
def test_what_is_no_name_of_the_hub_is_refused(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        found(name, tmp_path, allow_network=True, HF_ENDPOINT="http://127.0.0.1:9")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model_type": 3}', "\x00"])
def test_a_file_without_a_model_type_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UsageError):
        found(str(tmp_path), tmp_path)


class Hub(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/meta/portal/"):  # of a network that wants a login first
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")
            return
        status = {"/meta/llama/resolve/main/config.json": 200, "/meta/gated/resolve/main/config.json": 403}
        code = status.get(self.path, 404)
        if code == 200 and self.headers["Authorization"] != "Bearer secret":
            code = 401
        self.send_response(code)
        self.end_headers()
        self.wfile.write(LLAMA.encode() if code == 200 else b"")

    def log_message(self, *args):
        pass


@pytest.fixture
def hub():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_download_is_cached(tmp_path, hub):
    file = found("meta/llama", tmp_path, allow_network=True, HF_ENDPOINT=hub, HF_TOKEN="secret")
    assert file.read_text() == LLAMA
    assert found("meta/llama", tmp_path) == file


@pytest.mark.parametrize(
    ("name", "why"), [("meta/llama", "token"), ("meta/gated", "agreement"), ("a/b", "no such model")]
)
def test_a_refused_download_says_why(tmp_path, hub, name, why):
    with pytest.raises(UsageError, match=why):
        found(name, tmp_path, allow_network=True, HF_ENDPOINT=hub)
    assert not list(tmp_path.rglob("*.json"))


def test_an_answer_that_is_no_configuration_is_not_cached(tmp_path, hub):
    """It was found in place of the configuration ever after."""
    with pytest.raises(UsageError, match=r"/meta/portal/resolve/main/config\.json` is not JSON"):
        found("meta/portal", tmp_path, allow_network=True, HF_ENDPOINT=hub)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
