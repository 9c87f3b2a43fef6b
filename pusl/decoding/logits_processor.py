"""Ids generated so far -> the tokens that may follow, so that exactly k keyphrases are written (Algorithm 1).

For any Hugging Face `generate` call on a PUSL model, greedy, sampled or with beams:

    from transformers import LogitsProcessorList
    rule = TopKKeyphrasesLogitsProcessor.for_checkpoint(checkpoint, k=10)
    model.generate(**inputs, logits_processor=LogitsProcessorList([rule]), max_new_tokens=rule.max_new_tokens)

`KeyphraseGenerator` applies the same rule without this class, and several times faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor

from pusl.tokenizer import banned_ids
from pusl_eval.files import InputError

DEFAULT_PHRASE_TOKENS = 16


class TopKKeyphrasesLogitsProcessor(LogitsProcessor):
    """Algorithm 1, corrected: `<bok> ... <eok>` exactly k times, then EOS.

    After `<eok>` (and at the very start) only `<bok>` may follow; after the k-th `<eok>` only EOS;
    before that no EOS. No `<eok>` right after `<bok>` (an empty keyphrase), no `<bok>` inside a
    keyphrase, and a keyphrase of `max_phrase_tokens` tokens is closed. The paper prints EOK for BOK in
    the first rule and `eos_counts` for `eok_count` in the second. Repeats are allowed, as in the paper:
    for k DIFFERENT keyphrases use `KeyphraseGenerator`, which searches between whole phrases.
    Forced marks get the score 0, because a PUSL model does not learn `<bok>`; this rule writes it.

    Args:
        bok: id of `<bok>`, which begins a keyphrase.
        eok: id of `<eok>`, which ends it.
        eos: id of the end of the text.
        k: how many keyphrases.
        max_phrase_tokens: longest keyphrase, without its marks (16).
        pad: id of the padding; rows that have finished get only this.
        banned: further ids that must not appear inside a keyphrase (a separator, untrained spare rows).

    Examples:
        >>> rule = TopKKeyphrasesLogitsProcessor(bok=2, eok=3, eos=1, k=1, pad=0)
        >>> rule(torch.tensor([[0]]), torch.zeros(1, 6))
        tensor([[-inf, -inf, 0., -inf, -inf, -inf]])
        >>> rule(torch.tensor([[0, 2]]), torch.zeros(1, 6))
        tensor([[-inf, -inf, -inf, -inf, 0., 0.]])
        >>> rule(torch.tensor([[0, 2, 5, 3]]), torch.zeros(1, 6))
        tensor([[-inf, 0., -inf, -inf, -inf, -inf]])
    """

    def __init__(
        self,
        *,
        bok: int,
        eok: int,
        eos: int,
        k: int,
        max_phrase_tokens: int = DEFAULT_PHRASE_TOKENS,
        pad: int = 0,
        banned: Sequence[int] = (),
    ) -> None:
        if k < 1:
            raise InputError(f"k is {k}; it must be at least 1")
        if max_phrase_tokens < 1:
            raise InputError(f"max_phrase_tokens is {max_phrase_tokens}; it must be at least 1")
        self.bok, self.eok, self.eos, self.pad = bok, eok, eos, pad
        self.k, self.max_phrase_tokens = k, max_phrase_tokens
        self.never = torch.tensor(sorted({bok, eos, pad, *banned} - {eok}))

    @classmethod
    def for_checkpoint(cls, checkpoint: Any, k: int) -> TopKKeyphrasesLogitsProcessor:
        """The rule with a PUSL checkpoint's own marks, length cap and ids that are no text."""
        tokens = checkpoint.tokens
        return cls(
            bok=tokens.bok, eok=tokens.eok, eos=tokens.eos, pad=tokens.pad, k=k,
            max_phrase_tokens=checkpoint.meta.get("defaults", {}).get("max_phrase_tokens") or DEFAULT_PHRASE_TOKENS,
            banned=[tokens.sep, *banned_ids(checkpoint.tokenizer, checkpoint.model.config.vocab_size)],
        )  # fmt: skip

    @property
    def max_new_tokens(self) -> int:
        """Enough for k keyphrases of full length, their marks, and EOS."""
        return self.k * (self.max_phrase_tokens + 2) + 1

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        last = input_ids[:, -1]  # (B,)
        length = input_ids.shape[1]
        steps = torch.arange(length, device=input_ids.device)
        opened = torch.where(input_ids == self.bok, steps, -1).amax(1)  # (B,) position of the last <bok>
        inside = length - 1 - opened  # tokens of the current keyphrase so far, if one is open
        done = (input_ids == self.eok).sum(1) >= self.k
        over = (input_ids[:, 1:] == self.eos).any(1)  # position 0 is the decoder's start id
        between = (opened < 0) | (last == self.eok)
        scores = scores.clone()  # type: ignore[assignment]
        scores[:, self.never.to(scores.device)] = -torch.inf
        scores[~between & (inside == 0), self.eok] = -torch.inf
        for rows, token in (
            (~between & (inside >= self.max_phrase_tokens), self.eok),
            (between & ~done, self.bok),
            (done, self.eos),
            (over, self.pad),
        ):
            scores[rows] = -torch.inf
            scores[rows, token] = 0.0
        return scores
