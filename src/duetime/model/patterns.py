"""Regular expressions from outside, matched in time that grows with the text only.

Python's `re` tries one way after the other: `(a+)+$` needs 2^30 steps for thirty letters, and the server would answer nobody meanwhile.
Here all ways are followed at once, as a set of states, so that each character is read once. Sets that were met before are remembered.
References to groups and looking around cannot be followed this way, and are refused.
"""

from __future__ import annotations

import re
import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]  # private, but our grammar would differ from the one that users know
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from duetime.errors import InvalidValue

LONGEST: Final = 1_000  # characters of a pattern
MOST_STATES: Final = 2_000
_MOST_REMEMBERED = 2_000  # sets of states, and characters that follow one
_MATCHED = 0  # the number of the state in which a text has matched
_BEGIN, _END, _LAST = 1, 2, 4  # where a position is: before all, after all, and before a newline at the end

Test = Callable[[str], bool]
_CATEGORIES: dict[Any, Test] = {
    codes.CATEGORY_DIGIT: str.isdecimal,
    codes.CATEGORY_NOT_DIGIT: lambda letter: not letter.isdecimal(),
    codes.CATEGORY_SPACE: str.isspace,
    codes.CATEGORY_NOT_SPACE: lambda letter: not letter.isspace(),
    codes.CATEGORY_WORD: lambda letter: letter.isalnum() or letter == "_",
    codes.CATEGORY_NOT_WORD: lambda letter: not (letter.isalnum() or letter == "_"),
}
_ANCHORS = {
    codes.AT_BEGINNING: _BEGIN,
    codes.AT_BEGINNING_STRING: _BEGIN,
    codes.AT_END: _END | _LAST,
    codes.AT_END_STRING: _END,
}


class TooLong(Exception):
    """More steps were needed than the caller allows."""


class Steps:
    """How many steps a check may still take."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, number: int = 1) -> None:
        self.left -= number
        if self.left < 0:
            raise TooLong


class Pattern:
    """A regular expression as states. State 0 is the end; any other reads a letter, or leads on without one."""

    def __init__(self, text: str) -> None:
        self._tests: list[Test | None] = [None]  # what a state reads
        self._nexts: list[tuple[int, ...]] = [()]
        self._anchors: dict[int, int] = {}  # states that lead on only at such positions
        tree = parser.parse(text)
        if tree.state.flags & ~re.UNICODE:
            raise _Refused("flags")
        self._start = self._sequence(tree, _MATCHED)
        self._follow: dict[frozenset[int], dict[str, frozenset[int]]] = {}

    def search(self, text: str, steps: Steps) -> bool:
        """Return whether the pattern matches somewhere in a text. Raises TooLong after so many steps."""
        end, last = len(text), len(text) - 1 if text.endswith("\n") else -1
        states = self._closure([self._start], _BEGIN | (_END if not text else 0) | (_LAST if last == 0 else 0))
        for index, letter in enumerate(text, 1):
            if _MATCHED in states:
                return True
            steps.spend()
            if index in (end, last):
                steps.spend(len(states))
                states = self._closure(self._read(states, letter), _END if index == end else _LAST)
                continue
            known = self._follow.get(states)
            following = None if known is None else known.get(letter)
            if following is None:
                following = self._learn(states, letter, steps)
            states = following
        return _MATCHED in states

    def _learn(self, states: frozenset[int], letter: str, steps: Steps) -> frozenset[int]:
        steps.spend(2 * len(states))
        following = self._closure(self._read(states, letter), 0)
        if len(self._follow) >= _MOST_REMEMBERED:
            self._follow.clear()
        known = self._follow.setdefault(states, {})
        if len(known) >= _MOST_REMEMBERED:
            known.clear()
        known[letter] = following
        return following

    def _read(self, states: frozenset[int], letter: str) -> list[int]:
        """Return the states after a letter; a match may also begin there."""
        found = [self._start]
        for state in states:
            test = self._tests[state]
            if test is not None and test(letter):
                found += self._nexts[state]
        return found

    def _closure(self, states: Iterable[int], position: int) -> frozenset[int]:
        """Return these states and all that they lead to without a letter; only those that read one, or the end, are kept."""
        found: set[int] = set()
        left, seen = list(states), set[int]()
        while left:
            state = left.pop()
            if state in seen:
                continue
            seen.add(state)
            if state == _MATCHED or self._tests[state] is not None:
                found.add(state)
            elif state not in self._anchors or self._anchors[state] & position:
                left += self._nexts[state]
        return frozenset(found)

    # ---- from the tree of Python's parser to states, from the last part to the first ----

    def _state(self, test: Test | None, *nexts: int) -> int:
        if len(self._tests) >= MOST_STATES:
            raise _Refused("too many repeated parts")
        self._tests.append(test)
        self._nexts.append(nexts)
        return len(self._tests) - 1

    def _sequence(self, parts: Any, following: int) -> int:
        for part in reversed(list(parts)):
            following = self._part(part, following)
        return following

    def _part(self, part: tuple[Any, Any], following: int) -> int:
        code, value = part
        if code in (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN):
            return self._state(_test(code, value), following)
        if code is codes.BRANCH:
            return self._state(None, *(self._sequence(branch, following) for branch in value[1]))
        if code is codes.SUBPATTERN:
            _, added, removed, inner = value
            if added or removed:
                raise _Refused("flags")
            return self._sequence(inner, following)
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):  # greedy or not: whether there is a match is the same
            least, most, inner = value
            return self._repeat(least, most, inner, following)
        if code is codes.AT and value in _ANCHORS:
            state = self._state(None, following)
            self._anchors[state] = _ANCHORS[value]
            return state
        raise _Refused("looking around, word borders, references to groups, atomic or possessive parts")

    def _repeat(self, least: int, most: Any, inner: Any, following: int) -> int:
        if least > MOST_STATES or (most is not codes.MAXREPEAT and most > MOST_STATES):
            raise _Refused("too many repeated parts")
        if most is codes.MAXREPEAT:
            again = self._state(None)
            self._nexts[again] = (self._sequence(inner, again), following)
            following = again
        else:
            for _ in range(most - least):
                following = self._state(None, self._sequence(inner, following), following)
        for _ in range(least):
            before = following
            following = self._sequence(inner, following)
            if following == before:  # nothing, however often
                break
        return following


class _Refused(Exception):
    pass


def _test(code: Any, value: Any) -> Test:
    if code is codes.LITERAL:
        return chr(value).__eq__
    if code is codes.NOT_LITERAL:
        return chr(value).__ne__
    if code is codes.ANY:
        return "\n".__ne__
    negated = bool(value) and value[0][0] is codes.NEGATE
    letters: set[str] = set()
    ranges: list[tuple[str, str]] = []
    categories: list[Test] = []
    for kind, each in value[1:] if negated else value:
        if kind is codes.LITERAL:
            letters.add(chr(each))
        elif kind is codes.RANGE:
            ranges.append((chr(each[0]), chr(each[1])))
        else:
            categories.append(_CATEGORIES[each])

    def fits(letter: str) -> bool:
        found = letter in letters or any(low <= letter <= high for low, high in ranges) or any(test(letter) for test in categories)
        return found is not negated

    return fits


@lru_cache(maxsize=256)
def read_pattern(text: str) -> Pattern:
    """Read a regular expression. Raises InvalidValue for one that Python does not understand, or that takes too long to match."""
    if len(text) > LONGEST:
        raise InvalidValue(f"a pattern must have at most {LONGEST:,} characters, got {len(text):,}")
    try:
        return Pattern(text)
    except _Refused as refused:
        raise InvalidValue(
            f"the pattern {text[:100]!r} cannot be matched in linear time, because it uses {refused}; use letters, classes, groups, |, "
            "repeats, ^ and $ only"
        ) from None
    except (re.error, RecursionError, OverflowError, ValueError) as error:
        raise InvalidValue(f"the pattern {text[:100]!r} is not a regular expression that Python understands: {error}") from None
