"""Texts -> a tokenizer that knows <bok>, <eok> and <sep>.

Either the tokenizer of a pretrained T5 with the three marks added, or a SentencePiece unigram
vocabulary trained on the user's own texts, wrapped so that `AutoTokenizer` reloads it from the saved
folder without SentencePiece. Bytes are the fallback, so no character of any script is ever unknown.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from random import Random
from typing import Any

from pusl_eval.files import InputError

PAD, EOS, UNK = "<pad>", "</s>", "<unk>"
BOK, EOK, SEP = "<bok>", "<eok>", "<sep>"
SMALLEST_VOCABULARY = 3 + 256  # pad, eos, unk and the bytes
SENTENCES = 300_000  # the vocabulary is learned from a random sample of this many lines


@dataclass(frozen=True)
class TokenIds:
    """The ids that structure a target; `start` is the decoder's first input."""

    pad: int
    eos: int
    bok: int
    eok: int
    sep: int
    start: int

    @property
    def control(self) -> frozenset[int]:
        """Ids that never stand inside a keyphrase."""
        return frozenset((self.pad, self.eos, self.bok, self.eok, self.sep))


def train_tokenizer(texts: Iterable[str], vocab_size: int = 8000, *, marks: bool = True) -> Any:
    """Learns a SentencePiece unigram vocabulary from `texts` (streamed) -> a Hugging Face tokenizer.

    `vocab_size` is an upper bound without the three marks: a small corpus gives a smaller vocabulary.
    The same texts in the same order give the same tokenizer.
    """
    import sentencepiece
    from transformers import PreTrainedTokenizerFast

    trained = io.BytesIO()
    vocab_size = max(vocab_size, SMALLEST_VOCABULARY + 10)
    lines = _within(_sample((_clean(text) for text in texts), SENTENCES), (vocab_size - SMALLEST_VOCABULARY) // 2)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=trained, model_type="unigram", vocab_size=vocab_size,
            hard_vocab_limit=False, byte_fallback=True, character_coverage=1.0, normalization_rule_name="identity",
            pad_id=0, eos_id=1, unk_id=2, bos_id=-1, pad_piece=PAD, eos_piece=EOS, unk_piece=UNK, num_threads=2,
            minloglevel=2, max_sentence_length=1 << 16,
        )  # fmt: skip
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"no vocabulary of {vocab_size} pieces can be learned from these texts ({reason})") from None
    pieces = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    vocabulary = [(pieces.id_to_piece(i), pieces.get_score(i)) for i in range(pieces.get_piece_size())]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_backend(vocabulary), eos_token=EOS, unk_token=UNK, pad_token=PAD, model_max_length=512
    )
    if marks:
        add_marks(tokenizer)
    return tokenizer


def _backend(vocabulary: list[tuple[str, float]]) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    backend = Tokenizer(models.Unigram(vocabulary, unk_id=2, byte_fallback=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(
        single=["$A", EOS], pair=["$A", EOS, "$B", EOS], special_tokens=[(EOS, 1)]
    )
    return backend


def _sample(lines: Iterable[str], size: int) -> list[str]:
    """At most `size` lines, each as likely as the other, the same in every run."""
    random, kept = Random(0), []
    for number, line in enumerate(lines):
        if number < size:
            kept.append(line)
        elif (place := random.randrange(number + 1)) < size:
            kept[place] = line
    return kept


def _within(lines: list[str], characters: int) -> list[str]:
    """The lines without their rarest characters, so that at most `characters` different ones are left.

    Bytes spell the others. SentencePiece refuses texts with more characters than the vocabulary has room for.
    """
    counts = Counter(character for line in lines for character in line)
    if len(counts) <= characters:
        return lines
    rare = {ord(character): " " for character, _ in counts.most_common()[characters:]}
    return [line.translate(rare) for line in lines]


def _clean(text: str) -> str:
    import unicodedata

    return " ".join(unicodedata.normalize("NFKC", text).split())


def add_marks(tokenizer: Any) -> int:
    """Adds <bok>, <eok> and <sep> where they are missing and returns how many were new.

    `add_tokens` and not `extra_special_tokens`: setting the latter would replace T5's 100 sentinels.
    """
    from tokenizers import AddedToken

    known = tokenizer.get_vocab()
    new = [AddedToken(mark, special=True, normalized=False) for mark in (BOK, EOK, SEP) if mark not in known]
    return int(tokenizer.add_tokens(new, special_tokens=True)) if new else 0


def token_ids(tokenizer: Any, config: Any = None) -> TokenIds:
    """The ids that structure a target; `config` (a model's) names the decoder's start id."""
    known = tokenizer.get_vocab()
    missing = [mark for mark in (BOK, EOK, SEP) if mark not in known]
    if missing:
        raise InputError(f"the tokenizer has no {', '.join(missing)}; it was not saved by `pusl train`")
    pad, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
    start = getattr(config, "decoder_start_token_id", None)
    start = pad if start is None else start
    return TokenIds(pad=pad, eos=eos, bok=known[BOK], eok=known[EOK], sep=known[SEP], start=start)


def banned_ids(tokenizer: Any, vocab_size: int) -> list[int]:
    """Ids that are no text: T5's marks for gaps (`<extra_id_0>`, ...), and rows beyond the tokenizer, never trained."""
    found = (tokenizer.convert_tokens_to_ids(f"<extra_id_{number}>") for number in count())
    sentinels = takewhile(lambda one: one not in (None, tokenizer.unk_token_id), found)
    return [*sentinels, *range(len(tokenizer), vocab_size)]


def encode_texts(tokenizer: Any, texts: Sequence[str], max_length: int) -> list[list[int]]:
    """Documents -> input ids, cut to `max_length` with the closing EOS kept."""
    return [[*row[: max_length - 1], tokenizer.eos_token_id] for row in encode_whole(tokenizer, texts)]


def encode_whole(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Documents -> ids of any length, without EOS. The characters `<eok>` in a document are text, never the mark."""
    if not texts:
        return []
    ids: list[list[int]] = tokenizer(
        list(texts), add_special_tokens=False, return_attention_mask=False, split_special_tokens=True, verbose=False
    )["input_ids"]
    return ids


def encode_keyphrases(tokenizer: Any, keyphrases: Sequence[str], tokens: TokenIds) -> list[list[int]]:
    """Each keyphrase alone -> its ids, without EOS. A mark written out in the text (`<eok>`) is text."""
    if not keyphrases:
        return []
    rows = tokenizer(
        list(keyphrases), add_special_tokens=False, return_attention_mask=False, split_special_tokens=True,
        verbose=False,
    )["input_ids"]  # fmt: skip
    control = tokens.control
    return [[token for token in row if token not in control] for row in rows]


def decode_each(tokenizer: Any, phrases: Sequence[Sequence[int]]) -> list[str]:
    """Ids of several phrases -> their texts."""
    return [str(text) for text in tokenizer.batch_decode([list(phrase) for phrase in phrases])] if phrases else []
