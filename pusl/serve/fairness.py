"""Who has had how much -> whose turn it is.

Fair queueing: everybody has a tag, the cost of what they have had so far, and the lowest tag is next. Whoever comes
starts at the present, not at zero, so nobody saves up turns by staying away. The present moves on with everybody's
work, so newcomers cannot keep those who were there before waiting forever.
"""

from __future__ import annotations

from collections.abc import Hashable


class Turns:
    """The tags of everybody who waits.

    >>> turns = Turns()
    >>> turns.join("file of a thousand texts")
    >>> turns.charge("file of a thousand texts", 8.0)
    >>> turns.join("one text")
    >>> min(turns.tags, key=turns.tags.get)
    'one text'
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.tags: dict[Hashable, float] = {}

    def join(self, who: Hashable) -> None:
        """They wait from now on."""
        self.tags.setdefault(who, self.now)

    def leave(self, who: Hashable) -> None:
        """They want nothing more."""
        self.tags.pop(who, None)

    def charge(self, who: Hashable, cost: float) -> None:
        """They have had their turn."""
        self.tags[who] += cost
        self.now += cost / (len(self.tags) + 1)
