"""Changes that were decided here, from what was read, to be made in one step if that is still so."""

from __future__ import annotations

from duetime.clock import Instant
from duetime.model.outcome import LAST_ATTEMPTS_KEPT, MOST_ATTEMPTS_KEPT
from duetime.model.task import State
from duetime.store.redis.keys import LETTERS, Keys
from duetime.store.redis.link import Word
from duetime.store.redis.records import Content, Facts, Stored, encode


class Changes:
    """Gathers expectations and commands for the script `change`, which does all of it or nothing."""

    def __init__(self, keys: Keys) -> None:
        self._names = keys
        self._numbers = {name: number for number, name in enumerate(keys.fixed, 1)}
        self.keys: list[str] = []
        self._expected: list[Word] = []
        self._commands: list[Word] = []

    @property
    def is_empty(self) -> bool:
        return not self._commands

    @property
    def arguments(self) -> list[Word]:
        return [len(self._expected) // 3, *self._expected, *self._commands]

    def expect(self, key: str, field: str, value: bytes | None) -> None:
        """Make no change unless a field of a hash still has this value."""
        self._expected += [self._number(key), field, b"" if value is None else value]

    def do(self, command: str, key: str, *words: Word) -> None:
        self._commands += [2 + len(words), command, self._number(key), *words]

    def _number(self, key: str) -> int:
        if key not in self._numbers:
            self.keys.append(key)
            self._numbers[key] = len(self._numbers) + 1
        return self._numbers[key]

    # ---- tasks ----

    def seen(self, task: Stored) -> None:
        self.expect(self._names.facts, task.id, task.raw)

    def put(self, id: str, facts: Facts) -> None:
        facts.v += 1
        self.do("HSET", self._names.facts, id, encode(facts))

    def put_content(self, id: str, content: Content) -> None:
        self.do("HSET", self._names.records, id, encode(content))

    def keep_attempt(self, id: str, number: int, end: bytes) -> None:
        """Keep how an attempt ended; of very many the first and the last ones are kept."""
        self.do("HSET", self._names.attempts(id), number, end)
        if number > MOST_ATTEMPTS_KEPT:
            self.do("HDEL", self._names.attempts(id), number - LAST_ATTEMPTS_KEPT)

    def wait(self, id: str, facts: Facts, now: Instant) -> None:
        """Let a task wait for its due time, in its lane or parked, and store its facts."""
        facts.s, facts.w, facts.c, facts.g, facts.x = "p", None, 0, 0, 0
        position = max(facts.d, now)
        self.do("ZADD", self._names.parked if facts.p else self._names.lane(facts.l), position, id)
        self.do("HSETNX", self._names.lanes, facts.l, 1)
        self.put(id, facts)

    def block(self, id: str, facts: Facts) -> None:
        """Let a task wait for the others that its facts name."""
        facts.s, facts.w, facts.c, facts.g, facts.x = "b", None, 0, 0, 0
        self.do("ZADD", self._names.blocked, facts.n, id)
        if not facts.q:
            self.do("ZADD", self._names.freed, facts.n, id)
        self.do("HSETNX", self._names.lanes, facts.l, 1)
        self.put(id, facts)

    def leave(self, task: Stored) -> None:
        """Take a task from where it waits or runs."""
        facts = task.facts
        if facts.s == "r":
            self.do("SREM", self._names.running(facts.w or ""), task.id)
            self.do("HDEL", self._names.progress, task.id)
        elif facts.s == "b":
            self.do("ZREM", self._names.blocked, task.id)
            self.do("ZREM", self._names.freed, task.id)
        else:
            self.do("ZREM", self._names.parked if facts.p else self._names.lane(facts.l), task.id)

    def finish(self, id: str, facts: Facts, state: State, at: Instant) -> None:
        """Record the end of a task that was taken from where it was. It is the script that frees its key and counts it."""
        self.do("FINISH", self._names.facts, id, encode(facts), LETTERS[state], at)
