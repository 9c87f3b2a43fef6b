"""A Hub id -> a local model folder; a model folder -> a Hub repository.

Files come and go by one list, so that what is pushed can be loaded again and nothing else leaves the machine: no
checkpoints of the training, no run.json with its paths. Tokens, cache, endpoint and offline mode are those of
`huggingface_hub` (HF_TOKEN, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE).
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import socket
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pusl.fusion.folder import is_fused
from pusl_eval.files import InputError

META_FILE, LABELS_FILE, CARD_FILE = "pusl.json", "labels.txt.gz", "README.md"
# What a model folder needs to be loaded. Weights only as safetensors: a pickle could run code.
MODEL_FILES = (
    META_FILE, LABELS_FILE, "config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "*.model",
)  # fmt: skip
FUSED_FILES = (META_FILE, LABELS_FILE, "*.npz", "fusion.json", "memory*/*", "sources/*/*")
SHOWN_FILES = (CARD_FILE, "curve.svg")
TRAINING_DATA = (LABELS_FILE, "*/" + LABELS_FILE, "memory*/*")  # labels, and in a memory the texts too
NEVER = ("training/*", "selection/*", "run.json", "*/run.json")
HUB_ID = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w][\w./-]*))?")
ATTEMPTS, WAIT = 3, 1.0  # for answers that say the Hub itself has a problem; seconds before the second attempt
CONNECT_TIMEOUT = 5.0  # seconds
UNREACHABLE = "the Hub ({}) cannot be reached"

Result = TypeVar("Result")


class HubError(InputError):
    """What the Hub could not give or take, in one line."""


def parse_id(name: str | os.PathLike[str]) -> tuple[str, str | None] | None:
    """The repository and the revision of `user/model` or `user/model@revision`; None for anything else.

    >>> parse_id("ann/shoes"), parse_id("ann/shoes@v1.0"), parse_id("./models/shoes"), parse_id("shoes")
    (('ann/shoes', None), ('ann/shoes', 'v1.0'), None, None)
    """
    found = HUB_ID.fullmatch(os.fspath(name))
    return (found["id"], found["revision"]) if found else None


def model_folder(
    name: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
) -> Path:
    """A folder as it is, or the local copy of a Hub model (`user/model`, `user/model@revision`).

    Args:
        name: a folder that exists always wins over a Hub id.
        revision: branch, tag or commit; also the part behind `@`.
        token: a Hub token; by default HF_TOKEN or that of `hf auth login`.
        cache_dir: where downloads are kept; by default that of `huggingface_hub`.
        local_files_only: use what is in the cache; HF_HUB_OFFLINE=1 does the same.
    """
    path, asked = Path(name), parse_id(name)
    if path.exists() or asked is None:
        return path
    repository, tagged = asked
    if tagged and revision and tagged != revision:
        raise InputError(f"{name}: names the revision {tagged}, but revision is {revision}")
    options: dict[str, Any] = {
        "revision": revision or tagged, "token": token, "cache_dir": cache_dir, "local_files_only": local_files_only,
    }  # fmt: skip
    with _quiet_client():
        if not (local_files_only or is_offline() or reachable()):
            options["local_files_only"] = True
            with contextlib.suppress(Exception):  # whatever it is, the reason is that there is no network
                return _download(repository, options)
            raise HubError(f"{name}: no such folder, and {UNREACHABLE.format(_endpoint())}, and the cache lacks it")
        return _attempt(lambda: _download(repository, options), str(name))


def _download(repository: str, options: dict[str, Any]) -> Path:
    """pusl.json first: it says whether this is a model of ours, before gigabytes are loaded."""
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        meta = Path(hf_hub_download(repository, META_FILE, **options))
    except LocalEntryNotFoundError:
        raise
    except EntryNotFoundError:
        raise HubError(
            f"{repository}: not a PUSL model (the repository has no {META_FILE}); "
            f"train one from it with `pusl train --model {repository}`"
        ) from None
    fused = is_fused(meta.parent)
    patterns, others = (FUSED_FILES, None) if fused else (MODEL_FILES, ["*/*"])
    # The commit of pusl.json, so that a push in between does not mix two models.
    options = {**options, "revision": meta.parent.name}
    folder = Path(snapshot_download(repository, allow_patterns=list(patterns), ignore_patterns=others, **options))
    if not any(folder.glob("*.npz" if fused else "*.safetensors")):
        if options["local_files_only"] or is_offline():
            raise HubError(f"{repository}: only a part of it is in the cache; connect once to load the rest")
        raise HubError(f"{repository}: the repository has {META_FILE}, but no weights (*.safetensors)")
    return folder


def shown_name(folder: str | os.PathLike[str]) -> str:
    """What a model is called: `user/model` for a folder of the Hub's cache, else the folder's own name."""
    path = Path(folder).resolve()
    if path.parent.name == "snapshots" and path.parents[1].name.startswith("models--"):
        return path.parents[1].name.removeprefix("models--").replace("--", "/")
    return path.name


def reachable() -> bool:
    """Whether the Hub accepts a connection. Its client would try for half a minute before it says no."""
    if urllib.request.getproxies():
        return True  # the proxy knows
    address = urllib.parse.urlsplit(_endpoint())
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((address.hostname or "", port), CONNECT_TIMEOUT).close()
    except OSError:
        return False
    return True


def _endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE is set."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def check_login(repository: str, token: str | bool | None = None) -> str:
    """The name of the account that may push to `repository`; an InputError otherwise."""
    from huggingface_hub import HfApi

    asked = parse_id(repository)
    if asked is None or asked[1]:
        raise InputError(f"{repository!r} is not a name on the Hub; expected user/model")
    if not is_offline() and not reachable():
        raise HubError(f"{repository}: {UNREACHABLE.format(_endpoint())}")
    with _quiet_client():
        account = _attempt(lambda: HfApi(token=token).whoami(), repository, "log in first")
    name = str(account.get("name"))
    places = [name, *(str(group.get("name")) for group in account.get("orgs") or ())]
    owner = repository.partition("/")[0]
    if owner not in places:
        raise InputError(f"{repository}: you are logged in as {name} and may push to {', '.join(places)}")
    role = ((account.get("auth") or {}).get("accessToken") or {}).get("role")
    if role == "read":
        raise InputError(f"{repository}: your Hub token may only read; make one that may write")
    return name


def training_data(folder: str | os.PathLike[str]) -> str | None:
    """What a folder holds of its training file, in words; None if nothing."""
    folder = Path(folder)
    if is_fused(folder):
        return "the texts and labels of the training items (its memory)"
    return f"the training labels ({LABELS_FILE})" if (folder / LABELS_FILE).is_file() else None


def push(
    folder: str | os.PathLike[str],
    repository: str,
    *,
    public: bool = False,
    labels: bool | None = None,
    token: str | bool | None = None,
    card: dict[str, Any] | None = None,
    message: str = "Push a PUSL model",
) -> str:
    """Uploads a finished model in one commit and returns its address.

    Args:
        folder: made by `pusl train`, `pusl post-train` or `pusl fuse`; it is not changed.
        repository: `user/model`; made if it does not exist, private unless `public`.
        labels: whether training labels go along; a fused model cannot do without. Pass True or
            False if the folder has any.
        public: make the repository public.
        token: of the Hub, if you are not logged in.
        card: further metadata of the model card: license, language, datasets.
        message: of the commit.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    folder = Path(folder)
    files = files_to_push(folder, labels)
    content = _card(folder, repository, card or {})
    check_login(repository, token)
    api = HfApi(token=token)
    additions = [CommitOperationAdd(name, str(folder / name)) for name in files if name != CARD_FILE]
    additions.append(CommitOperationAdd(CARD_FILE, content.encode()))

    def upload() -> str:
        url = str(api.create_repo(repository, private=not public, exist_ok=True))
        if not public and api.model_info(repository).private is False:
            raise InputError(f"{repository}: exists already and is public; pass --public (public=True) to push to it")
        ours = (*MODEL_FILES, *FUSED_FILES)
        stale = [name for name in api.list_repo_files(repository) if _matches(name, ours) and name not in files]
        deletions = [CommitOperationDelete(name) for name in stale]
        api.create_commit(repository, [*additions, *deletions], commit_message=message)
        return url

    with _quiet_client():
        return _attempt(upload, repository, "nothing was uploaded")


def files_to_push(folder: Path, labels: bool | None) -> list[str]:
    """The files of a finished model that go to the Hub, as paths inside the folder."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such model folder")
    if not (folder / META_FILE).is_file():
        raise InputError(f"{folder}: not a PUSL model (no {META_FILE}); make one with `pusl train --out {folder}`")
    held = training_data(folder)
    if held and labels is None:
        raise InputError(f"{folder}: holds {held}. Pass --labels to upload them or --no-labels to leave them out")
    if held and not labels and is_fused(folder):
        raise InputError(f"{folder}: a fused model cannot work without {held}; pass --labels to upload them")
    wanted = FUSED_FILES if is_fused(folder) else MODEL_FILES
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    kept = [name for name in names if _matches(name, (*wanted, *SHOWN_FILES)) and not _matches(name, NEVER)]
    if not is_fused(folder):
        kept = [name for name in kept if "/" not in name]
    return [name for name in kept if labels or not _matches(name, TRAINING_DATA)]


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _card(folder: Path, repository: str, more: dict[str, Any]) -> str:
    from pusl.training.modelcard import card_for_push

    return card_for_push(folder, repository, more)


def _attempt(work: Callable[[], Result], name: str, hint: str = "") -> Result:
    """The result, or a HubError of one line. What the Hub's own trouble caused is tried again."""
    for number in range(1, ATTEMPTS + 1):
        try:
            return work()
        except (InputError, KeyboardInterrupt):
            raise
        except Exception as error:  # the client raises a dozen kinds, its HTTP library as many more
            if number < ATTEMPTS and (_status(error) or 0) >= 500:
                time.sleep(WAIT * number)
                continue
            more = f"; {hint}" if hint and not isinstance(error, ValueError) else ""
            raise HubError(f"{name}: {why(error)}{more}") from None
    raise AssertionError


def why(error: BaseException) -> str:
    """A failed call of the Hub's client -> what happened and what helps, in one line."""
    from huggingface_hub import errors

    chain = _chain(error)
    found = {kind: next((one for one in chain if isinstance(one, kind)), None) for kind in _kinds()}
    login = "log in with `hf auth login` or set HF_TOKEN"
    if found[errors.OfflineModeIsEnabled] or (is_offline() and found[errors.LocalEntryNotFoundError]):
        return "not in the cache, and offline mode is on (HF_HUB_OFFLINE)"
    if found[errors.GatedRepoError]:
        return f"is gated: accept its terms on {_endpoint()} and {login}"
    if found[errors.RevisionNotFoundError]:
        return "the repository has no such revision"
    if found[errors.LocalTokenNotFoundError]:
        return f"the Hub needs to know who you are: {login}"
    status = next((code for one in chain if (code := _status(one))), None)
    if found[errors.RepositoryNotFoundError] and status != 403:
        return f"no such folder, and not found on the Hub; if it is private, {login}"
    if status in (401, 403):
        return f"the Hub refuses this token or wants one ({status}): {login}"
    if status is not None and status >= 500:
        return f"the Hub has a problem ({status}); try again later"
    if status is not None:
        return f"the Hub answers {status}: {' '.join(str(error).split())[:300]}"
    if any(_is_connection(one) for one in chain):
        return UNREACHABLE.format(_endpoint())
    if found[errors.LocalEntryNotFoundError]:
        return "not in the cache"
    return _first_line(error)


def _kinds() -> tuple[type[BaseException], ...]:
    from huggingface_hub import errors

    return (
        errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError, errors.GatedRepoError,
        errors.RevisionNotFoundError, errors.LocalTokenNotFoundError, errors.RepositoryNotFoundError,
        errors.HfHubHTTPError,
    )  # fmt: skip


def _chain(error: BaseException | None) -> list[BaseException]:
    """The error and what caused it, the outermost first."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _status(error: BaseException) -> int | None:
    code = getattr(getattr(error, "response", None), "status_code", None)
    return code if isinstance(code, int) else None


def _is_connection(error: BaseException) -> bool:
    """The HTTP library below the client has had three names, so its errors are known by theirs."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"ConnectionError", "TransportError", "RequestException", "TimeoutError"})


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]


@contextlib.contextmanager
def _quiet_client() -> Iterator[None]:
    """Hides the client's warnings about retries and tokens; its progress bars are for terminals only."""
    from huggingface_hub import utils as hub_utils

    bars: Any = hub_utils
    client: Any = hub_utils.logging
    level, silent = client.get_verbosity(), bars.are_progress_bars_disabled()
    client.set_verbosity_error()
    hide = not silent and not sys.stderr.isatty()
    if hide:
        bars.disable_progress_bars()
    try:
        yield
    finally:
        client.set_verbosity(level)
        if hide:
            bars.enable_progress_bars()
