"""Models on the Hub, against a small server on 127.0.0.1; no other address is ever asked."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import forked
import pytest
import torch
from model_files import CARD, same, save_toy

import convexlift as cl
from convexlift.models.hub import metadata, readme
from convexlift.models.repositories import MISSING

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Server(ThreadingHTTPServer):
    """Repositories in memory: the few requests of uploads and downloads."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.requests: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args):
        pass

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def json(self, content) -> None:
        self.answer(200, json.dumps(content).encode(), Content_Type="application/json")

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.server.requests.append(f"{self.command} {self.path}")
        org, name, _, _, file = self.path.strip("/").split("/", 4)
        files = self.server.files.get(f"{org}/{name}")
        if files is None:
            self.answer(404, X_Error_Code="RepoNotFound")
        elif file not in files:
            self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
        else:
            etag = hashlib.sha256(files[file]).hexdigest()
            self.answer(200, files[file], ETag=f'"{etag}"', X_Repo_Commit=COMMIT)

    def do_POST(self):
        self.server.requests.append(f"POST {self.path}")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            sent = json.loads(body)
            name = "/".join(filter(None, (sent.get("organization"), sent["name"])))
            self.server.files.setdefault(name, {})
            self.json({"url": f"{self.server.address}/{name}"})
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                     for f in files]  # fmt: skip
            self.json({"files": modes})
        elif "/commit/" in self.path:
            name = self.path.removeprefix("/api/models/").partition("/commit/")[0]
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.server.files[name][line["value"]["path"]] = content
            self.json({"success": True, "commitOid": COMMIT,
                       "commitUrl": f"{self.server.address}/{name}/commit/{COMMIT}"})  # fmt: skip
        else:  # validation of the README
            self.json({"errors": [], "warnings": []})


@pytest.fixture
def server():
    server = Server()
    yield server
    server.shutdown()
    server.server_close()


def run(code: str, server: Server, folder: Path, **environment: str) -> str:
    """The output of a program for which the server is the Hub; its cache is in a folder."""
    pytest.importorskip("huggingface_hub")
    own = {
        "HF_ENDPOINT": server.address, "HF_HOME": str(folder / "cache"),
        "HF_TOKEN": "hf_none", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1",
        **environment,
    }  # fmt: skip
    return forked.run(f"import convexlift as cl\n{code}", folder, own)


FAILING = """
for name in {!r}:
    try:
        cl.load(name)
    except (ValueError, ImportError) as error:
        print(type(error).__name__, error)
"""


def test_a_network_goes_to_the_hub_and_comes_back(server, tmp_path):
    net, path = save_toy(tmp_path)
    code = f"""
net = cl.load({str(path)!r})
print(net.push_to_hub("group/toy"))
net = cl.load("group/toy")
cl.save(net, "again", net.card)
"""
    assert run(code, server, tmp_path) == f"{server.address}/group/toy"
    files = server.files["group/toy"]
    assert set(files) == {"model.safetensors", "model.json", "README.md"}
    assert files["README.md"].decode() == readme(CARD, "group/toy")
    assert same(cl.load(tmp_path / "again"), net)
    assert cl.models.card(tmp_path / "again") == CARD
    # From the cache, without a connection; the card too.
    server.requests.clear()
    offline = "print(cl.load('group/toy').card.name, cl.models.card('group/toy').weight)"
    assert run(offline, server, tmp_path, HF_HUB_OFFLINE="1") == f"{CARD.name} {CARD.weight}"
    assert server.requests == []


def test_what_is_missing_is_said(server, tmp_path):
    server.files["group/other"] = {"README.md": b"weights of something else"}
    none, other = run(FAILING.format(["group/none", "group/other"]), server, tmp_path).splitlines()
    assert none.startswith("ValueError group/none: there is no such repository on the Hub")
    assert other.startswith("ValueError group/other: the repository has no model.json and model.s")
    code = FAILING.format(["group/toy"])
    code += "import sys; sys.modules['huggingface_hub'] = None\n" + code
    offline, without = run(code, server, tmp_path, HF_HUB_OFFLINE="1").splitlines()
    assert "not in the cache, and the Hub cannot be reached (or HF_HUB_OFFLINE is set)" in offline
    assert without == f"ImportError {MISSING}"


def test_local_files_and_shipped_names_win(server, tmp_path):
    """Nothing is asked of anybody."""
    (tmp_path / "group").mkdir()
    _, path = save_toy(tmp_path / "group")
    found = [f"group/{path.name}", "photo-open", str(path)]
    lost = ["group/none", "a/b/c", "./toy", "../b", "org/n.json"]
    lines = run(FAILING.format([*found, *lost]), server, tmp_path).splitlines()
    assert len(lines) == len(lost)
    assert all(line.startswith("ValueError there is no model") for line in lines)
    assert server.requests == []


def test_the_readme_states_licence_and_results():
    text = readme(CARD, "group/toy")
    assert text.startswith("---\nlibrary_name: ")
    assert 'cl.load("group/toy")' in text
    assert CARD.summary in text
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(text.split("---\n")[1])
    assert found == metadata(CARD)
    free = cl.ModelCard("n", "A network.", "denoising", 0.1, license="CC BY 4.0; weights only")
    assert metadata(free)["license"] == "cc-by-4.0"
    odd = cl.ModelCard("n", "A network.", "denoising", 0.1, license="Ask us")
    assert (metadata(odd)["license"], metadata(odd)["license_name"]) == ("other", "Ask us")


@pytest.mark.parametrize("kind", ["convex", "adaptive"])
def test_the_example_in_the_readme_is_for_the_network(kind):
    if kind == "convex":
        net = cl.networks.ridge(channels=2, kernel=3)
    else:
        net = cl.networks.adaptive(channels=2, kernel=3, widths=(3,), blocks=1)
    net.card = CARD
    text = readme(CARD, "group/toy", net)
    code = text.split("```python\n")[1].split("```")[0].replace('cl.load("group/toy")', "net")
    exec(code, {"net": net, "y": torch.rand(1, 1, 8, 8), "sigma": 0.1})


def test_bad_input_is_refused_before_any_request():
    net = cl.networks.ridge(channels=2, kernel=3)
    with pytest.raises(ValueError, match="a repository is named org/name, got 'a b'"):
        net.push_to_hub("a b", CARD)
    with pytest.raises(ValueError, match="a repository is named org/name, got 'toy'"):
        cl.push_to_hub(net, "toy", CARD)
    with pytest.raises(ValueError, match=r"needs a card: push_to_hub\(\.\.\., card=ModelCard"):
        cl.push_to_hub(net, "group/toy")
