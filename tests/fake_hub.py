"""A local server that speaks the Hub's protocol: accounts, repositories, commits, LFS uploads, downloads, and faults.

`FakeHub` keeps repositories in memory. Small files come inside the commit, large ones through LFS, as on the Hub.
A fault is a rule for the next requests whose path contains a word: a status, a cut connection or a delay.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

LICENSES = {"apache-2.0", "mit", "cc-by-4.0", "other", "unknown"}
PIPELINES = {"text-generation", "summarization", "translation", "text-classification", "feature-extraction"}
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass
class Fault:
    """What happens to the next `times` requests whose method and path contain `word`."""

    word: str
    status: int = 0
    cut: int = -1  # bytes of the body that are still sent; then the connection ends
    delay: float = 0.0
    times: int = 1
    header: str = ""


@dataclass
class Repository:
    """Commits, newest last; each is all files of the repository."""

    private: bool
    gated: bool = False
    commits: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[-1][1] if self.commits else {}

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        if revision == "main":
            return self.commits[-1] if self.commits else ("0" * 40, {})
        return next((commit for commit in self.commits if commit[0] == revision), None)

    def commit(self, files: dict[str, bytes]) -> str:
        name = hashlib.sha1(repr([len(self.commits), sorted(files)]).encode()).hexdigest()
        self.commits.append((name, files))
        return name


class FakeHub:
    """The server; `endpoint` is its address for HF_ENDPOINT."""

    def __init__(self, large: int = 20_000) -> None:
        self.large = large  # bytes from which on a file is uploaded through LFS
        self.repositories: dict[str, Repository] = {}
        self.accounts: dict[str, dict[str, Any]] = {}
        self.uploads: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.lock = threading.RLock()
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self) -> FakeHub:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def add_account(self, token: str, name: str, role: str = "write", orgs: tuple[str, ...] = ()) -> None:
        self.accounts[token] = {
            "type": "user", "name": name, "orgs": [{"name": org} for org in orgs],
            "auth": {"accessToken": {"role": role, "displayName": "test"}},
        }  # fmt: skip

    def add(self, name: str, files: dict[str, bytes], private: bool = False, gated: bool = False) -> Repository:
        self.repositories[name] = Repository(private, gated)
        self.repositories[name].commit(files)
        return self.repositories[name]

    def fault_for(self, line: str) -> Fault | None:
        with self.lock:
            self.requests.append(line)
            for fault in self.faults:
                if fault.times > 0 and fault.word in line:
                    fault.times -= 1
                    return fault
        return None


def check_card(text: str) -> str | None:
    """What the Hub would say about a model card's metadata; None if it takes it."""
    if not text.startswith("---\n"):
        return "empty or missing yaml metadata in repo card"
    data = yaml.safe_load(text.split("---\n")[1])
    license, pipeline, bases = data.get("license"), data.get("pipeline_tag"), data.get("base_model") or []
    if license is not None and license not in LICENSES:
        return f'"license" must be one of {sorted(LICENSES)}'
    if pipeline is not None and pipeline not in PIPELINES:
        return f'"pipeline_tag" must be one of {sorted(PIPELINES)}'
    for name in [bases] if isinstance(bases, str) else bases:
        if not HUB_ID.fullmatch(name):
            return '"base_model" must be a model id'
    for language in data.get("language") or []:
        if not re.fullmatch("[a-z]{2,3}|multilingual", language):
            return '"language" must only contain lowercase codes'
    for model in data.get("model-index") or []:
        for result in model["results"]:
            if not result["task"].get("type") or not {"type", "name"} <= set(result["dataset"]):
                return '"model-index[0].results[0]" lacks a task or data set'
            if any("value" not in metric or "type" not in metric for metric in result["metrics"]):
                return '"model-index[0].results[0].metrics" lacks a value'
    return None


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """The tests' output stays clean."""

    def do_GET(self) -> None:
        self.answer()

    do_HEAD = do_POST = do_PUT = do_GET

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:  # the client has died; what it began to send counts for nothing
            self.close_connection = True
            return None
        self.fault = self.hub.fault_for(f"{self.command} {self.path}")
        if self.fault and self.fault.delay:
            time.sleep(self.fault.delay)
        if self.fault and self.fault.status:
            headers = {"X-Error-Code": self.fault.header} if self.fault.header else {}
            return self.reply(self.fault.status, {"error": "a fault of the test"}, headers)
        with self.hub.lock:
            self.route(unquote(urlsplit(self.path).path), body)

    def route(self, path: str, body: bytes) -> None:
        account = self.hub.accounts.get((self.headers.get("Authorization") or "").removeprefix("Bearer "))
        if path == "/api/whoami-v2":
            return self.reply(200, account) if account else self.reply(401, {"error": "Invalid username or password."})
        if path == "/api/validate-yaml":
            problem = check_card(json.loads(body)["content"])
            errors = [{"message": problem}] if problem else []
            return self.reply(400 if errors else 200, {"errors": errors, "warnings": []})
        if path == "/api/repos/create":
            return self.create(json.loads(body), account)
        if path.startswith("/lfs/") and self.command == "PUT":
            if hashlib.sha256(body).hexdigest() != path.removeprefix("/lfs/"):
                return self.reply(400, {"error": "wrong hash"})
            self.hub.uploads[path.removeprefix("/lfs/")] = body
            return self.reply(200, {})
        found = re.fullmatch(r"(?:/api/models)?/([\w.-]+/[\w.-]+?)(\.git)?(/.*)?", path)
        name, rest = (found[1], found[3] or "") if found else ("", "")
        repository = self.hub.repositories.get(name)
        places = [account["name"], *(org["name"] for org in account["orgs"])] if account else []
        may_see = repository is not None and (not repository.private or name.partition("/")[0] in places)
        if repository is None or not may_see:
            status = 404 if account else 401
            return self.reply(status, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        if repository.gated and not account:
            return self.reply(401, {"error": "Access is restricted"}, {"X-Error-Code": "GatedRepo"})
        if self.command == "POST" and (account is None or account["auth"]["accessToken"]["role"] == "read"):
            return self.reply(403, {"error": "Forbidden"})
        if rest == "/info/lfs/objects/batch":
            return self.batch(json.loads(body))
        if rest.startswith("/preupload/"):
            files = json.loads(body)["files"]
            modes = [{"path": file["path"], "shouldIgnore": False, "uploadMode":
                      "lfs" if file["size"] >= self.hub.large else "regular"} for file in files]  # fmt: skip
            return self.reply(200, {"files": modes})
        if rest.startswith("/commit/"):
            return self.commit(repository, body, name)
        if rest.startswith("/resolve/"):
            revision, _, file = rest.removeprefix("/resolve/").partition("/")
            return self.download(repository, revision, file)
        revision = rest.removeprefix("/revision/") if rest.startswith("/revision/") else "main"
        if rest.startswith("/tree/"):
            revision = rest.removeprefix("/tree/").partition("/")[0]
        commit = repository.at(revision)
        if commit is None:
            return self.reply(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        if rest.startswith("/tree/"):
            rows = [{"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for file, content in commit[1].items()]  # fmt: skip
            return self.reply(200, rows)
        siblings = [{"rfilename": file, "size": len(content)} for file, content in commit[1].items()]
        facts = {"_id": name, "id": name, "modelId": name, "sha": commit[0], "private": repository.private}
        return self.reply(200, {**facts, "siblings": siblings, "tags": [], "downloads": 0, "likes": 0})

    def create(self, asked: dict[str, Any], account: dict[str, Any] | None) -> None:
        if account is None:
            return self.reply(401, {"error": "Invalid username or password."})
        name = f"{asked.get('organization') or account['name']}/{asked['name']}"
        if account["auth"]["accessToken"]["role"] == "read":
            return self.reply(403, {"error": "You don't have the rights to create a model"})
        if name in self.hub.repositories:
            return self.reply(409, {"error": "You already created this model repo", "url": self.url(name)})
        private = bool(asked.get("private")) or asked.get("visibility") == "private"
        self.hub.repositories[name] = Repository(private)
        return self.reply(200, {"url": self.url(name), "name": name, "id": name})

    def url(self, name: str) -> str:
        return f"{self.hub.endpoint}/{name}"

    def batch(self, asked: dict[str, Any]) -> None:
        objects = [
            {**one, "actions": {"upload": {"href": f"{self.hub.endpoint}/lfs/{one['oid']}", "header": {}}}}
            for one in asked["objects"]
        ]
        self.reply(200, {"transfer": "basic", "objects": objects}, kind="application/vnd.git-lfs+json")

    def commit(self, repository: Repository, body: bytes, name: str) -> None:
        files = dict(repository.files)
        for line in body.splitlines():
            row = json.loads(line)
            value = row["value"]
            if row["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif row["key"] == "lfsFile":
                files[value["path"]] = self.hub.uploads[value["oid"]]
            elif row["key"] == "deletedFile":
                del files[value["path"]]
        problem = check_card(files.get("README.md", b"").decode())
        if problem:
            return self.reply(400, {"error": f"Invalid metadata in README.md. - {problem}"})
        oid = repository.commit(files)
        return self.reply(200, {"commitOid": oid, "commitUrl": f"{self.url(name)}/commit/{oid}", "hookOutput": ""})

    def download(self, repository: Repository, revision: str, file: str) -> None:
        commit = repository.at(revision)
        if commit is None:
            return self.reply(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        if file not in commit[1]:
            more = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit[0]}
            return self.reply(404, {"error": "Entry not found"}, more)
        content = commit[1][file]
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": commit[0],
                   "Accept-Ranges": "bytes"}  # fmt: skip
        begun = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if begun and int(begun[1]) > 0:
            start = int(begun[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            return self.send(206, content[start:], headers, "application/octet-stream")
        return self.send(200, content, headers, "application/octet-stream")

    def reply(
        self, status: int, content: Any, headers: dict[str, str] | None = None, kind: str = "application/json"
    ) -> None:
        more = dict(headers or {})
        if isinstance(content, dict) and "error" in content:
            more["X-Error-Message"] = content["error"]
        self.send(status, json.dumps(content).encode(), more, kind)

    def send(self, status: int, content: bytes, headers: dict[str, str], kind: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.fault and self.fault.cut >= 0:
            self.wfile.write(content[: self.fault.cut])
            self.close_connection = True
            return
        self.wfile.write(content)
