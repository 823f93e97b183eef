"""Text search: how a text is split into folded words, the terms of a search, and the passage that shows a hit.

A word is a run of letters and digits of any script, without case and diacritics. FTS5's `unicode61` splits the same way; a store
whose own parser does not gets its words from here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

import msgspec

from duetime.errors import InvalidValue

MOST_TERMS = 20
MOST_POSITIONS = 16_383  # the last position that PostgreSQL distinguishes
LONGEST_WORD = 200  # letters of a word that count: nobody searches for a line of base64
AROUND = 80  # letters of a passage before and after the hit

_WORD = re.compile(r"[^\W_]+")
_PIECE = re.compile(r'"([^"]*)"(\*?)|(\S+)')


class Term(msgspec.Struct, frozen=True):
    """Words that must follow one another; with `prefix`, the last one is the beginning of a word."""

    words: tuple[str, ...]
    prefix: bool = False

    def __str__(self) -> str:
        return " ".join(self.words) + ("*" if self.prefix else "")


def read_terms(text: str) -> list[Term]:
    """Read a search: words that must all occur, "phrases", and prefixes such as time*.

    All other characters only separate words, so no input is a syntax error in the store.
    """
    terms: list[Term] = []
    for quoted, star, bare in _PIECE.findall(text.replace("\0", " ")):
        words = tuple(split(quoted or bare))
        if words:
            terms.append(Term(words, prefix=bool(star) or bare.endswith("*")))
    if not terms:
        raise InvalidValue(f"there is no word to search for in {text[:100]!r}; give at least one with a letter or a digit")
    if len(terms) > MOST_TERMS:
        raise InvalidValue(f"a search may have {MOST_TERMS} words and phrases at most, got {len(terms)}; leave some out")
    return list(dict.fromkeys(terms))


def split(text: str) -> list[str]:
    """Return the folded words of a text in order."""
    if text.isascii():
        return [word[:LONGEST_WORD] for word in _WORD.findall(text.lower())]
    return [word[:LONGEST_WORD] for word in _WORD.findall(fold(text))]


def fold(text: str) -> str:
    """Remove case and diacritics; each letter stays one letter."""
    parts = unicodedata.normalize("NFD", text)
    return "".join(letter for letter in parts if not unicodedata.combining(letter)).lower()


def positions(text: str) -> dict[str, list[int]]:
    """Return the positions of each word, counted in words from 1 and at most MOST_POSITIONS."""
    found: dict[str, list[int]] = {}
    for position, word in enumerate(split(text), 1):
        found.setdefault(word, []).append(min(position, MOST_POSITIONS))
    return found


def passage(text: str, terms: Sequence[Term]) -> str:
    """Return a few words around the first hit of any term, on one line."""
    text = text if text.isascii() else unicodedata.normalize("NFC", text)
    spans = [span for term in terms for span in _first(text, term)]
    begin, end = min(spans, default=(0, 0))
    left, right = max(0, begin - AROUND), min(len(text), end + AROUND)
    if left:  # not in the middle of a word, unless the word is longer than the passage
        gap = text.find(" ", left, begin)
        left = gap + 1 if gap >= 0 else left
    if right < len(text):
        gap = text.rfind(" ", end, right)
        right = gap if gap >= 0 else right
    shown = " ".join(text[left:right].split())
    return f"{'… ' if left else ''}{shown}{' …' if right < len(text) else ''}"


def _first(text: str, term: Term) -> Iterator[tuple[int, int]]:
    """Yield the span of a term's first hit, if there is one."""
    window: list[tuple[str, int, int]] = []
    for match in _WORD.finditer(text):
        window.append((fold(match[0])[:LONGEST_WORD], match.start(), match.end()))
        if len(window) > len(term.words):
            del window[0]
        if len(window) == len(term.words) and _fits([word for word, _, _ in window], term):
            yield window[0][1], window[-1][2]
            return


def _fits(words: Sequence[str], term: Term) -> bool:
    *before, last = term.words
    return [*words[:-1]] == before and (words[-1].startswith(last) if term.prefix else words[-1] == last)
