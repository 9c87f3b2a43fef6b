"""A model folder <-> model, tokenizer and what PUSL needs to know about them.

The folder is a plain Hugging Face checkpoint (`AutoModelForSeq2SeqLM`, `AutoTokenizer`) plus
`pusl.json` (paradigm, marks, defaults) and `labels.txt.gz` (the training labels). One trap of T5 is
handled here: transformers assumes that every T5 ties `lm_head` to the embedding. v1.1 and flan
checkpoints do not, and `resize_token_embeddings` would silently tie them again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pusl import paradigms
from pusl.devices import resolve_device
from pusl.hub import parse_id, why
from pusl.paradigms import Paradigm
from pusl.tokenizer import BOK, EOK, SEP, TokenIds, add_marks, token_ids
from pusl_eval.errors import damage_refused
from pusl_eval.files import InputError, even_permissions, open_atomic, read_json, read_lines, staging_folder, write_json
from pusl_eval.files.lines import is_gzip

FORMAT = 1
LARGEST_DEFAULT = 100_000  # of the lengths and counts in pusl.json
DEFAULT_PARADIGM = paradigms.get("pusl")
META_FILE, LABELS_FILE = "pusl.json", "labels.txt.gz"
REPAIR = "copy the folder again or train again"  # what helps if a file of it is missing or damaged
FAMILY = ("t5", "mt5", "umt5", "longt5")  # ByT5 is a t5 with a tokenizer of its own

# name: d_model, d_kv, heads, d_ff, layers on each side, default vocabulary
SHAPES = {
    "tiny": (128, 32, 4, 256, 2, 2000),  # ~0.9 M parameters: seconds to minutes on a laptop
    "mini": (256, 64, 4, 768, 4, 8000),  # ~8 M
    "small": (512, 64, 8, 2048, 6, 32000),  # the shape of t5-small, ~60 M
}


@dataclass
class Checkpoint:
    """A model ready for use. `meta` is the content of `pusl.json`."""

    model: Any
    tokenizer: Any
    paradigm: Paradigm
    tokens: TokenIds
    meta: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None

    @property
    def defaults(self) -> dict[str, Any]:
        """Recommended settings written by training: k, mu, max_source_length, max_phrase_tokens."""
        return dict(self.meta.get("defaults", {}))


def scratch_model(shape: str, tokenizer: Any, *, dropout: float = 0.1, seed: int | None = None) -> Any:
    """A random T5 of a named shape whose embedding fits `tokenizer` exactly."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    if shape not in SHAPES:
        raise InputError(f"unknown model 'scratch:{shape}'; known: {', '.join('scratch:' + name for name in SHAPES)}")
    d_model, d_kv, heads, d_ff, layers, _ = SHAPES[shape]
    if seed is not None:
        torch.manual_seed(seed)
    config = T5Config(
        vocab_size=len(tokenizer), d_model=d_model, d_kv=d_kv, num_heads=heads, d_ff=d_ff, num_layers=layers,
        dropout_rate=dropout, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    config.decoder_start_token_id = tokenizer.pad_token_id
    return T5ForConditionalGeneration(config)


def load_base(name: str, dropout: float | None = None, paradigm: Paradigm = DEFAULT_PARADIGM) -> tuple[Any, Any]:
    """A hub id or a folder -> (model in fp32, tokenizer), marks added and embeddings fitted to the paradigm."""
    import torch
    from transformers import AutoConfig

    if os.path.isdir(name):
        if not (Path(name) / "config.json").is_file():
            raise InputError(f"model '{name}': not a folder with a checkpoint (config.json is missing); {REPAIR}")
        _check_file(Path(name) / "config.json")
    asked = None if os.path.exists(name) else parse_id(name)
    place: dict[str, Any] = {"pretrained_model_name_or_path": name}
    if asked is not None:
        place = {"pretrained_model_name_or_path": asked[0], "revision": asked[1] or "main"}
    with quiet():
        try:
            config = AutoConfig.from_pretrained(**place, trust_remote_code=False)
        except (OSError, ValueError) as error:
            reason = _first_line(error) if asked is None else why(error)
            raise InputError(
                f"model '{name}': not a folder with a checkpoint, and not loaded from the Hub ({reason}). "
                "Offline, use a local folder or scratch:tiny|mini|small"
            ) from None
        if config.model_type not in FAMILY:
            raise InputError(f"model '{name}' is a {config.model_type}; PUSL trains T5, mT5, umT5, ByT5 and LongT5")
        changes: dict[str, Any] = {} if dropout is None else {"dropout_rate": dropout}
        model, tokenizer = _load(place, f"model '{name}'", dtype=torch.float32, **changes)
    _settle_scale(place, model)
    fit_embeddings(model, tokenizer, paradigm)
    return model, tokenizer


def _settle_scale(place: dict[str, Any], model: Any) -> None:
    """T5 v1.1 and flan (untied) do not scale the decoder's output before `lm_head`, the first T5 does.

    transformers derives this from `tie_word_embeddings` in config.json, but lets a stray
    `scale_decoder_outputs` beside it win: the loss of an untied model then starts at chance.
    """
    from transformers import PretrainedConfig

    written, _ = PretrainedConfig.get_config_dict(**place)
    if written.get("tie_word_embeddings") is False and not is_tied(model):
        model.config.scale_decoder_outputs = False


def fit_embeddings(model: Any, tokenizer: Any, paradigm: Paradigm = DEFAULT_PARADIGM) -> int:
    """Adds the marks to the tokenizer where they are missing, and rows for them to the model.

    Spare rows are used first (T5 has 28 above its tokenizer's size), so most models keep their shape;
    returns how many rows had to be appended. A spare row was never trained, so the row of a new mark that
    the paradigm writes starts near that of the token whose role it takes: `<eok>` ends a phrase as EOS does,
    `<bok>` opens one as the decoder's first id does, `<sep>` separates two as a semicolon does. PUSL learns
    faster this way from pretrained weights (docs/log.md). Marks that are never written start near the mean row, where
    they take no probability. An untied `lm_head` gets rows of its own and stays untied.
    """
    import torch

    known = len(tokenizer)
    new = add_marks(tokenizer)
    tied, rows, needed = is_tied(model), model.get_input_embeddings().num_embeddings, len(tokenizer)
    if needed > rows:
        model.set_input_embeddings(_grown_embedding(model.get_input_embeddings(), needed))
        head = torch.nn.Linear(model.config.d_model, needed, bias=False)
        source = model.get_input_embeddings() if tied else _grown_embedding(model.get_output_embeddings(), needed)
        head.weight = source.weight
        model.set_output_embeddings(head)
        for config in (model.config, model.encoder.config, model.decoder.config):
            config.vocab_size = needed
        model.vocab_size = needed
    if new:
        roles = _roles(model, tokenizer, paradigm)
        weights = [model.get_input_embeddings().weight] + ([] if tied else [model.get_output_embeddings().weight])
        for weight in weights:
            trained = weight.detach()[: min(rows, known)]
            mean = trained.mean(0)
            start = torch.stack([trained[roles[i]] if i in roles else mean for i in range(known, needed)])
            # Noise from a fixed seed makes the marks differ from these tokens and from each other.
            noise = torch.randn(new, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight)
            weight.data[known:needed] = start + 0.1 * trained.std(0) * noise
    return max(0, int(needed - rows))


def _roles(model: Any, tokenizer: Any, paradigm: Paradigm) -> dict[int, int]:
    """Id of each mark that the paradigm writes -> the id of the token whose role it takes."""
    ids = token_ids(tokenizer, model.config)
    like = {"bok": ids.start, "eok": ids.eos, "sep": tokenizer.get_vocab().get(";")}
    return {getattr(ids, mark): like[mark] for mark in paradigm.marks if like[mark] is not None}


def _grown_embedding(module: Any, rows: int) -> Any:
    import torch

    old = module.weight.detach()
    grown = torch.nn.Embedding(rows, old.shape[1], dtype=old.dtype, device=old.device)
    with torch.no_grad():
        grown.weight[: len(old)] = old
        grown.weight[len(old) :] = old.mean(0)
    return grown


def scales_output(config: Any) -> bool:
    """Whether a model scales its decoder's output before `lm_head`: T5 and LongT5 say so, umT5 if tied, mT5 never."""
    if config.model_type == "umt5":
        return bool(config.tie_word_embeddings)
    return bool(getattr(config, "scale_decoder_outputs", False))


def is_tied(model: Any) -> bool:
    """Whether lm_head and embedding are one tensor; the config is not reliable about this."""
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight


def save_checkpoint(
    folder: str | Path, model: Any, tokenizer: Any, meta: dict[str, Any], state_dict: dict[str, Any] | None = None
) -> Path:
    """Writes a model folder: into a hidden folder first, then file by file in place, pusl.json last.

    `state_dict` replaces the model's own weights where these are sharded over processes.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with staging_folder(folder / "saving") as staging:
        with quiet():
            model.save_pretrained(staging, state_dict=state_dict)
            tokenizer.save_pretrained(staging)
        even_permissions(staging)
        for file in sorted(staging.iterdir()):
            os.replace(file, folder / file.name)
    marks = {"bok": BOK, "eok": EOK, "sep": SEP}
    write_json(folder / META_FILE, {"format": FORMAT, **meta, "special_tokens": marks}, force=True)
    return folder


def load_weights(pretrained_model_name_or_path: str | Path, **options: Any) -> Any:
    """A T5 model whose every tensor was read from its files and is finite; anything else is refused.

    transformers fills what is missing with random numbers and drops what it cannot place.
    """
    import torch
    from transformers import AutoModelForSeq2SeqLM

    model, found = AutoModelForSeq2SeqLM.from_pretrained(
        pretrained_model_name_or_path, output_loading_info=True, trust_remote_code=False, **options
    )
    for problem, keys in (
        ("lacks", found["missing_keys"]),
        ("has another shape than config.json says for", [key for key, *_ in found["mismatched_keys"]]),
        ("has weights that config.json does not mention:", found["unexpected_keys"]),
    ):
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise InputError(f"its weight file {problem} {sorted(keys)[0]}{more}")
    for key, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"its tensor {key} holds values that are NaN or infinite")
    return model


def _load(place: dict[str, Any], title: str, **options: Any) -> tuple[Any, Any]:
    """A model and its tokenizer. In a local folder, the file that is missing or damaged is named."""
    folder = Path(place["pretrained_model_name_or_path"])
    weights = sorted(path.name for kind in ("*.safetensors", "*.bin") for path in folder.glob(kind))
    with _damage_named(folder, title, ["config.json", *(weights or ["model.safetensors"])]):
        model = load_weights(**place, **options)
    return model, load_tokenizer(**place, title=title)


def load_tokenizer(pretrained_model_name_or_path: str | Path, title: str = "", **place: Any) -> Any:
    """The tokenizer of a model. In a local folder, the file that is missing or damaged is named."""
    from transformers import AutoTokenizer

    folder = Path(pretrained_model_name_or_path)
    with _damage_named(folder, title or f"{folder}: the tokenizer", ["tokenizer_config.json", "tokenizer.json"]):
        tokenizer = AutoTokenizer.from_pretrained(pretrained_model_name_or_path, trust_remote_code=False, **place)
    # Of some kinds, transformers makes an empty one if there is no file to read it from.
    sources = {"tokenizer.json", *tokenizer.vocab_files_names.values()}
    if folder.is_dir() and len(sources) > 1 and not any((folder / name).is_file() for name in sources):
        _check_file(folder / "tokenizer.json")
    return tokenizer


@contextlib.contextmanager
def _damage_named(folder: Path, title: str, files: Iterable[str]) -> Iterator[None]:
    """Turns what libraries say of a file that is missing or damaged (each has its own errors) into its name."""
    try:
        yield
    except Exception as error:
        if folder.is_dir() and not isinstance(error, InputError):
            for name in files:
                _check_file(folder / name)
        raise InputError(f"{title} cannot be loaded ({_first_line(error)})") from None


def _check_file(path: Path) -> None:
    """An InputError if a file of a model is missing or damaged."""
    if not path.is_file():
        raise InputError(f"{path.parent}: {path.name} is missing; {REPAIR}")
    if path.suffix == ".json":
        read_json(path, REPAIR)
    elif path.suffix == ".safetensors":
        from safetensors import safe_open

        with damage_refused(path, "cannot be loaded, the file", REPAIR), safe_open(path, framework="pt"):
            pass


def load_checkpoint(folder: str | Path, device: str | None = None, dtype: Any = None) -> Checkpoint:
    """A folder written by `pusl train` -> a Checkpoint in eval mode.

    `device` is `cpu`, `cuda`, `cuda:1`, `mps` or `auto` (the default), `dtype` the weights' type (default: float32).
    """
    import torch

    folder = Path(folder)
    meta = read_meta(folder)
    with quiet():
        place = {"pretrained_model_name_or_path": folder}
        model, tokenizer = _load(place, f"{folder}: the model", dtype=dtype or torch.float32)
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise InputError(
            f"{folder}: its tokenizer has {len(tokenizer)} tokens, its model {rows}; "
            "is tokenizer.json or tokenizer_config.json missing or from another model?"
        )
    model.to(resolve_device(device)).eval()
    tokens = token_ids(tokenizer, model.config)
    return Checkpoint(model, tokenizer, paradigms.get(meta["paradigm"]), tokens, meta, folder)


def read_meta(folder: str | Path) -> dict[str, Any]:
    """The checked content of a folder's pusl.json."""
    path = Path(folder) / META_FILE
    if not Path(folder).is_dir():
        raise InputError(f"{folder}: no such model folder")
    if not path.is_file():
        raise InputError(f"{folder}: not a PUSL model (no {META_FILE}); make one with `pusl train --out {folder}`")
    meta = read_json(path, "train the model again")
    if meta.get("paradigm") not in paradigms.names():
        raise InputError(f"{path}: 'paradigm' must be one of {', '.join(paradigms.names())}")
    if not isinstance(meta.get("format", FORMAT), int):
        raise InputError(f"{path}: 'format' must be an integer, found {meta['format']!r}")
    if meta.get("format", FORMAT) > FORMAT:
        raise InputError(f"{path}: format {meta['format']} is newer than this PUSL knows ({FORMAT}); update PUSL")
    defaults = meta.get("defaults", {})
    if not isinstance(defaults, dict):
        raise InputError(f"{path}: 'defaults' must be an object, found {defaults!r}")
    for name in ("k", "max_source_length", "max_phrase_tokens"):
        value = defaults.get(name)
        if value is not None and (type(value) is not int or not 1 <= value <= LARGEST_DEFAULT):
            raise InputError(f"{path}: '{name}' must be an integer from 1 to {LARGEST_DEFAULT}, found {value!r}")
    return meta


def save_labels(folder: str | Path, labels: Iterable[str]) -> None:
    """Writes the distinct training labels, sorted, one a line."""
    with open_atomic(Path(folder) / LABELS_FILE, force=True) as stream:
        stream.writelines(label + "\n" for label in sorted({" ".join(label.split()) for label in labels}))


def load_labels(folder: str | Path) -> list[str]:
    """The training labels of a model folder; empty if the folder has none."""
    path = Path(folder) / LABELS_FILE
    if not path.is_file():
        return []
    if not is_gzip(path):
        raise InputError(f"{path}: is damaged, its content is not gzip data; {REPAIR}")
    return [label for _, label in read_lines(path)]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hides loading bars, the advice to tie what must stay untied, and each of the Hub's retries."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging as hf_logging

    logging: Any = hf_logging  # its functions are untyped
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_level = hub_logging.get_verbosity()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        hub_logging.set_verbosity(hub_level)
        if bars:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
