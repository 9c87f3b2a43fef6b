"""The Hub, both ways, against a local server that speaks its protocol. Real processes: the client reads its settings
at import."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fake_hub import FakeHub, Fault, check_card

from pusl.hub import parse_id, shown_name
from pusl.training.modelcard import hub_base, metadata, render_card

CARD = "---\nlibrary_name: pusl\n---\n\n# A model\n\npusl generate --model DIR --input catalog.jsonl\n"
MODEL = {
    "pusl.json": b'{"format": 1, "paradigm": "pusl", "base_model": "scratch:tiny", "defaults": {"k": 5}}',
    "config.json": b"{}", "model.safetensors": bytes(range(256)) * 200, "tokenizer.json": b"{}",
    "labels.txt.gz": gzip.compress(b"red shoe\n"), "README.md": CARD.encode(), "run.json": b'{"secret": "/home/ann"}',
}  # fmt: skip
FUSED = {
    "pusl.json": json.dumps({"format": 1, "paradigm": "fused", "sources": [{"name": "knn", "kind": "knn"}], "depth": 15,
                             "defaults": {"k": 4, "mu": 2.0}, "memory": "memory"}).encode(),
    "ranker.npz": b"0" * 30_000, "memory/items.jsonl": b'{"text": "private"}', "labels.txt.gz": MODEL["labels.txt.gz"],
    "fusion.json": json.dumps({"percent": {"fused": {"B@2": 50.0, "F1@O": 40.0}}, "dev_items": 99}).encode(),
}  # fmt: skip


@pytest.fixture
def hub():
    with FakeHub() as server:
        server.add_account("good", "ann", orgs=("shop",))
        server.add_account("reader", "bob", role="read")
        yield server


@pytest.fixture
def folder(tmp_path):
    return written(tmp_path / "model", MODEL)


def written(place: Path, files: dict[str, bytes]) -> Path:
    for name, content in {**files, "training/checkpoint-1/model.safetensors": b"old"}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    return place


def environment(hub: FakeHub | None, home: Path, token: str = "", **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    endpoint = hub.endpoint if hub else "http://127.0.0.1:9"
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1",
                "HF_HUB_ETAG_TIMEOUT": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "1"}  # fmt: skip
    return {**kept, **settings, **({"HF_TOKEN": token} if token else {}), **more}


def run(args: list[str], **settings: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pusl", *args], capture_output=True, text=True, stdin=subprocess.DEVNULL,
        timeout=120, **settings,
    )  # fmt: skip


def load(names: str, home: Path, hub: FakeHub | None, token: str = "", **more: str) -> str:
    """The folders that `model_folder` gives in a process of its own, or its errors, one a line."""
    code = (
        "import sys; from pusl.hub import model_folder; from pusl_eval.files import InputError\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(model_folder(name))\n    except InputError as error: print('error:', error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *names.split()], capture_output=True, text=True, timeout=120,
        env=environment(hub, home, token, **more), cwd=home,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("\n") == len(names.split()), done.stdout
    return done.stdout.strip()


@pytest.mark.slow
def test_push_is_private_and_takes_what_a_model_needs(hub, folder, tmp_path):
    env = environment(hub, tmp_path, "good")
    done = run(["push", str(folder), "ann/shoes", "--no-labels", "--license", "mit", "--language", "en,de"], env=env)
    assert done.returncode == 0 and done.stderr == "", (done.stderr, hub.requests)
    assert done.stdout == f"{hub.endpoint}/ann/shoes: private, without training labels\n"
    there = hub.repositories["ann/shoes"]
    assert there.private
    assert set(there.files) == {"pusl.json", "config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert there.files["model.safetensors"] == MODEL["model.safetensors"]  # through LFS
    assert any("/info/lfs/objects/batch" in line for line in hub.requests)
    card = there.files["README.md"].decode()
    data = yaml.safe_load(card.split("---\n")[1])
    assert data == {"library_name": "pusl", "license": "mit", "language": ["en", "de"]}
    assert "--model ann/shoes --input" in card
    assert (folder / "README.md").read_text() == CARD  # the folder stays as it was
    done = run(["push", str(folder), "ann/shoes", "--labels", "--public"], env=env)
    assert done.returncode == 0 and there.files["labels.txt.gz"] == MODEL["labels.txt.gz"]
    done = run(["push", str(folder), "ann/shoes", "--no-labels"], env=env)
    assert done.returncode == 0 and "labels.txt.gz" not in there.files  # what was pushed before is gone again


@pytest.mark.slow
def test_a_pushed_model_comes_back_and_works_offline(hub, folder, tmp_path):
    assert run(["push", str(folder), "ann/shoes", "--labels"], env=environment(hub, tmp_path, "good")).returncode == 0
    place = Path(load("ann/shoes", tmp_path, hub, "good"))
    names = {path.name for path in place.iterdir()}
    assert names == {"pusl.json", "config.json", "model.safetensors", "tokenizer.json", "labels.txt.gz"}
    assert (place / "model.safetensors").read_bytes() == MODEL["model.safetensors"]
    assert shown_name(place) == "ann/shoes"
    first = place.name
    assert load(f"ann/shoes@{first}", tmp_path, hub, "good") == str(place)
    assert load("ann/shoes", tmp_path, None, HF_HUB_OFFLINE="1") == str(place)
    assert load("ann/shoes", tmp_path, None) == str(place)  # no network: the cache answers
    missing = load("ann/other", tmp_path, None, HF_HUB_OFFLINE="1")
    assert missing == "error: ann/other: not in the cache, and offline mode is on (HF_HUB_OFFLINE)"
    unreachable = load("ann/other", tmp_path, None)
    message = "no such folder, and the Hub (http://127.0.0.1:9) cannot be reached, and the cache lacks it"
    assert unreachable == f"error: ann/other: {message}"
    done = run(["push", str(folder), "ann/shoes", "--labels"], env=environment(None, tmp_path, "good"))
    assert done.returncode == 2 and done.stderr == "pusl: ann/shoes: the Hub (http://127.0.0.1:9) cannot be reached\n"


@pytest.mark.slow
def test_a_fused_model_needs_its_memory(hub, tmp_path):
    env = environment(hub, tmp_path, "good")
    folder = written(tmp_path / "fused", FUSED)
    for flags, message in (([], "Pass --labels to upload"), (["--no-labels"], "cannot work without")):
        done = run(["push", str(folder), "shop/fused", *flags], env=env)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
    assert not hub.repositories
    done = run(["push", str(folder), "shop/fused", "--labels"], env=env)
    assert done.returncode == 0, done.stderr
    there = hub.repositories["shop/fused"].files
    assert set(there) == {*FUSED, "README.md"}
    data = yaml.safe_load(there["README.md"].decode().split("---\n")[1])
    metrics = data["model-index"][0]["results"][0]["metrics"]
    assert {metric["type"]: metric["value"] for metric in metrics} == {"B@2": 0.5, "F1@O": 0.4}
    hub.repositories["shop/fused"].private = False
    place = Path(load("shop/fused", tmp_path, hub))
    assert (place / "memory" / "items.jsonl").is_file() and (place / "ranker.npz").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    "token, name, message",
    [
        ("", "ann/shoes", "log in with `hf auth login` or set HF_TOKEN"),
        ("bad", "ann/shoes", "log in with `hf auth login` or set HF_TOKEN"),
        ("reader", "bob/shoes", "may only read"),
        ("good", "bob/shoes", "you are logged in as ann and may push to ann, shop"),
        ("good", "shoes", "expected user/model"),
        ("good", "ann/public", "exists already and is public; pass --public"),
    ],
)
def test_who_may_not_push_is_told_in_one_line(hub, folder, tmp_path, token, name, message):
    hub.add("ann/public", {})
    done = run(["push", str(folder), name, "--no-labels"], env=environment(hub, tmp_path, token))
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and not hub.repositories["ann/public"].files


@pytest.mark.slow
def test_a_wrong_card_and_a_wrong_folder_are_named(hub, folder, tmp_path):
    env = environment(hub, tmp_path, "good")
    done = run(["push", str(folder), "ann/shoes", "--no-labels", "--license", "mine"], env=env)
    assert done.returncode == 2 and '"license" must be one of' in done.stderr, done.stderr
    (folder / "README.md").write_text("---\na: [\n---\n")
    done = run(["push", str(folder), "ann/shoes", "--no-labels"], env=env)
    assert done.returncode == 2 and "README.md: the card's metadata" in done.stderr
    assert done.stderr.count("\n") == 1
    done = run(["push", str(tmp_path / "none"), "ann/shoes"], env=env)
    assert done.returncode == 2 and "no such model folder" in done.stderr


@pytest.mark.slow
def test_faults_of_the_hub(hub, folder, tmp_path):
    """500s and cut connections are tried again; what stays broken is one line, and the folder is not touched."""
    env = environment(hub, tmp_path, "good")
    hub.faults = [Fault("whoami", 500), Fault("/repos/create", 502), Fault("/commit/", 503)]
    assert run(["push", str(folder), "ann/shoes", "--labels"], env=env).returncode == 0
    hub.faults = [Fault("GET /ann/shoes/resolve", cut=1000), Fault("/tree/", 500), Fault("HEAD", 500)]
    place = Path(load("ann/shoes", tmp_path, hub, "good"))
    assert (place / "model.safetensors").read_bytes() == MODEL["model.safetensors"]
    hub.faults = [Fault("whoami", 500, times=99)]
    done = run(["push", str(folder), "ann/shoes", "--labels"], env=env)
    assert done.returncode == 2 and "the Hub has a problem (500); try again later" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_slow_hub_is_waited_for_and_then_given_up(hub, tmp_path):
    hub.add("ann/shoes", {name: content for name, content in MODEL.items() if "/" not in name})
    hub.faults = [Fault("HEAD", delay=0.5)]
    assert Path(load("ann/shoes", tmp_path / ".", hub)).is_dir()
    hub.faults = [Fault("/", delay=2.0, times=99)]
    (tmp_path / "second").mkdir()
    found = load("ann/shoes", tmp_path / "second", hub)
    assert found.startswith("error: ann/shoes: the Hub") and "cannot be reached" in found


@pytest.mark.slow
def test_what_cannot_be_loaded_is_told_in_one_line(hub, tmp_path):
    files = {name: content for name, content in MODEL.items() if "/" not in name}
    hub.add("ann/gated", files, gated=True)
    hub.add("ann/private", files, private=True)
    hub.add("google/t5", {"config.json": b"{}"})
    hub.add("ann/empty", {"pusl.json": MODEL["pusl.json"]})
    messages = (
        ("ann/gated", "is gated: accept its terms on"),
        ("ann/private", "not found on the Hub; if it is private, log in with `hf auth login` or set HF_TOKEN"),
        ("no/such", "no such folder, and not found on the Hub"),
        ("google/t5", "not a PUSL model (the repository has no pusl.json); train one from it with `pusl train"),
        ("ann/empty", "but no weights"),
    )
    lines = load(" ".join(name for name, _ in messages), tmp_path, hub).splitlines()
    for (name, message), found in zip(messages, lines, strict=True):
        assert found.startswith(f"error: {name}: ") and message in found
    hub.repositories["ann/private"].private = False
    assert "no such revision" in load("ann/private@v9", tmp_path, hub)


def test_ids_and_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "t5").mkdir(parents=True)
    assert parse_id("/models/t5") is None and parse_id("a/b/c") is None and parse_id("../t5") is None
    assert hub_base("models/t5") is None and hub_base("google-t5/t5-base@v1") == "google-t5/t5-base"
    assert hub_base("scratch:tiny") is None and hub_base("/nowhere/at/all") is None


def test_cards_are_what_the_hub_takes(tmp_path):
    from huggingface_hub import ModelCard

    config = {
        "paradigm": "pusl", "model": str(tmp_path), "train": "/home/ann/train.jsonl", "dev": "/home/ann/dev.jsonl",
        "mu": None, "loss": "cross-entropy", "order": "shuffle", "batch_size": 32, "optimizer": "adamw", "lr": 1e-3,
        "warmup": 0.05, "seed": 0, "dev_items": 500, "metric": "B@2mu", "license": "apache-2.0", "language": "en, de",
        "dataset": "ann/shoes",
    }  # fmt: skip
    record = {
        "config": config, "parameters": 10, "steps": 5, "max_steps": 5, "stopped_early": False,
        "summary": {"trained": 9, "items": 10, "labels": 7, "mu": 2.5}, "timings": {"train": 60.0},
        "data": {"train": {"sha256": "00"}}, "best": {"step": 4, "B@2mu": 0.25, "F1@O": 0.5, "B@mu": 0.3, "K@2mu": 5.0},
    }  # fmt: skip
    text = render_card(record)
    assert check_card(text) is None
    assert "/home/ann" not in text and str(tmp_path) not in text  # no path leaves the machine
    data = ModelCard(text).data.to_dict()
    assert data["library_name"] == "pusl" and data["pipeline_tag"] == "text-generation"
    assert "base_model" not in data and data["datasets"] == ["ann/shoes"] and data["language"] == ["en", "de"]
    assert data["widget"][0]["text"] and len(data["model-index"][0]["results"][0]["metrics"]) == 4
    assert check_card(f"---\n{metadata('pusl', base='google-t5/t5-base')}\n---\n") is None
    assert yaml.safe_load(metadata("pusl", base="google-t5/t5-base"))["base_model"] == "google-t5/t5-base"
    assert check_card("---\nlicense: mine\n---\n") and check_card("# no metadata") is not None


@pytest.fixture(scope="module")
def items(tmp_path_factory):
    """A training, a dev and a catalog file."""
    folder = tmp_path_factory.mktemp("items")
    for name, count in (("train", 40), ("dev", 8)):
        labels = ["red shoe", "shoe", "leather"]
        rows = [
            {"id": f"{name}{i}", "text": f"red shoe number {i} of leather", "keyphrases": labels[: 2 + i % 2]}
            for i in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.slow
def test_train_pushes_and_every_command_loads_from_the_hub(hub, items, tmp_path):
    """One process for all, because loading torch takes longer than the work."""
    train = ["train", "--model", "scratch:tiny", "--train", f"{items}/train.jsonl", "--dev", f"{items}/dev.jsonl",
             "--max-steps", "2", "--vocab-size", "300"]  # fmt: skip
    catalog = ["--input", f"{items}/dev.jsonl", "--quiet", "--workers", "1"]
    commands = [
        [*train, "--out", "m", "--push-to-hub", "ann/m", "--no-push-labels"],
        ["generate", "--model", "ann/m", *catalog, "--output", "hub.jsonl", "-k", "3"],
        ["generate", "--model", "m", *catalog, "--output", "here.jsonl", "-k", "3"],
        ["score", "--model", "ann/m", *catalog, "--candidates", "words.txt", "--output", "scores.jsonl"],
        ["post-train", "--model", "ann/m", "--train", f"{items}/train.jsonl", "--out", "pt", "--sources", "raw",
         "--max-steps", "1"],
        ["fuse", "--train", f"{items}/train.jsonl", "--sources", "pusl=ann/m", "text", "--out", "fused"],
        ["push", "fused", "ann/fused", "--labels"],
        ["generate", "--model", "ann/fused", *catalog, "--output", "fused.jsonl", "-k", "2"],
    ]  # fmt: skip
    (tmp_path / "words.txt").write_text("red shoe\nboot\n")
    code = f"from pusl.cli import main\nfor argv in {commands!r}:\n    assert main(argv) == 0, argv\n"
    code += "from pusl.serve.serve_config import ServeConfig, check_config\n"
    code += "from pusl.hub import shown_name\n"
    code += "assert shown_name(check_config(ServeConfig(model='ann/m')).model) == 'ann/m'\n"
    env = environment(hub, tmp_path / "home", "good")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"uploaded: {hub.endpoint}/ann/m\n" in done.stderr
    assert hub.repositories["ann/m"].private and "labels.txt.gz" not in hub.repositories["ann/m"].files
    assert (tmp_path / "m" / "labels.txt.gz").is_file()
    assert (tmp_path / "hub.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()
    card = yaml.safe_load((tmp_path / "pt" / "README.md").read_text().split("---\n")[1])
    assert card["base_model"] == "ann/m"
    assert len((tmp_path / "fused.jsonl").read_text().splitlines()) == 8


@pytest.mark.slow
def test_train_checks_the_login_first_and_keeps_the_model_if_the_push_fails(hub, items, tmp_path):
    train = ["train", "--model", "scratch:tiny", "--train", f"{items}/train.jsonl", "--max-steps", "1",
             "--vocab-size", "300", "--push-to-hub", "ann/m"]  # fmt: skip
    for token, flags, message in (
        ("", ["--no-push-labels"], "set HF_TOKEN; log in first"),
        ("good", [], "Pass --push-labels to upload them or --no-push-labels to leave them out"),
    ):
        done = run([*train, "--out", "m", *flags], env=environment(hub, tmp_path, token), cwd=tmp_path)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
        assert not (tmp_path / "m").exists()
    hub.faults = [Fault("/commit/", 403)]
    done = run([*train, "--out", "m", "--no-push-labels"], env=environment(hub, tmp_path, "good"), cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == "Later: pusl push m ann/m"
    assert "the model is finished, but was not uploaded. ann/m: the Hub refuses this token" in done.stderr
    assert json.loads((tmp_path / "m" / "run.json").read_text())["status"] == "finished"
    assert (tmp_path / "m" / "model.safetensors").is_file() and not (tmp_path / "m" / "training").exists()
