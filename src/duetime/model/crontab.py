"""Crontab files: each line that runs a command becomes an entry, each line that cannot be read a refused line.

The format is that of crontab(5): blank lines, comments, variables, and five fields or `@daily` before a command. Variables hold for the
lines below them. CRON_TZ sets the zone of these lines; without a CRON_TZ above, TZ does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from duetime.errors import InvalidValue
from duetime.model.rules import Cron
from duetime.model.rules.reading import read_zone

MOST_ENTRIES = 10_000

_VARIABLE = re.compile(r"""(?P<quote>["']?)(?P<name>[A-Za-z_]\w*)(?P=quote)\s*=\s*(?P<value>.*)""", re.ASCII)
_NAME = re.compile(r"name:\s*(\S.*)", re.IGNORECASE)
_PERCENT = re.compile(r"(?<!\\)%")
# What often precedes the program in a command and does not name it.
_PREAMBLE = re.compile(r"(?:cd\s+\S+\s*(?:&&|;)\s*|[A-Za-z_]\w*=\S*\s+|(?:nice|ionice|nohup|exec|sudo|env)\s+(?:-\S+\s+)*)+", re.ASCII)
_ODD = re.compile(r"[^A-Za-z0-9._-]+")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A line that runs a command. `input` is what followed the first `%`; `note` is the comment right above it.

    `zoned`: a line above it named its zone.
    """

    line: int
    name: str
    rule: Cron
    command: str
    input: str | None = None
    user: str | None = None
    environment: Mapping[str, str] = {}
    note: str = ""
    zoned: bool = False


class RefusedLine(msgspec.Struct, frozen=True):
    """A line that cannot be imported, and why."""

    line: int
    text: str
    why: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.why}"


class Crontab(msgspec.Struct, frozen=True):
    """The content of a crontab, in the order of its lines."""

    entries: tuple[Entry, ...]
    refusals: tuple[RefusedLine, ...] = ()


def read_crontab(text: str, *, system: bool = False, tz: str = "UTC") -> Crontab:
    """Read a whole crontab. `system`: each command follows a user, as in /etc/crontab. `tz` is the zone until the file sets one.

    A comment `# name: …` right above an entry names it; otherwise its program does. Equal names are numbered.
    """
    reading = _Reading(system, read_zone(tz))
    for number, line in enumerate(text.split("\n"), 1):
        try:
            reading.add_line(number, line.strip().removeprefix("\ufeff"))
        except InvalidValue as problem:
            reading.refusals.append(RefusedLine(number, line.strip(), str(problem)))
            reading.comment = ""
    return Crontab(tuple(reading.entries), tuple(reading.refusals))


class _Reading:
    """The state of reading one file."""

    def __init__(self, system: bool, tz: str) -> None:
        self._system = system
        self._tz = tz
        self._named_tz = False  # by CRON_TZ, which TZ does not override
        self._zoned = False  # by either
        self._environment: dict[str, str] = {}
        self._names: set[str] = set()
        self._numbers: dict[str, int] = {}  # the last number of a repeated name
        self.comment = ""
        self.entries: list[Entry] = []
        self.refusals: list[RefusedLine] = []

    def add_line(self, number: int, line: str) -> None:
        if not line:
            self.comment = ""
        elif line.startswith("#"):
            self.comment = line.lstrip("#").strip()
        elif variable := _VARIABLE.fullmatch(line):
            self.comment = ""
            self._set(variable["name"], _unquoted(variable["value"]))
        else:
            self._add(number, line)
            self.comment = ""

    def _set(self, name: str, value: str) -> None:
        if name == "CRON_TZ":
            self._tz, self._named_tz, self._zoned = read_zone(value, name), True, True
            return
        if name == "TZ" and not self._named_tz:
            self._tz, self._zoned = read_zone(value, name), True
        self._environment[name] = value

    def _add(self, number: int, line: str) -> None:
        if len(self.entries) >= MOST_ENTRIES:
            raise InvalidValue(f"a crontab may have at most {MOST_ENTRIES:,} entries; split the file")
        expression, rest = self._split(line)
        user = None
        if self._system:
            user, _, rest = rest.partition(" ")
        rule = Cron(expression, tz=self._tz)
        command, feed = _split_input(rest)
        if not command:
            wanted = "a user and a command" if self._system else "a command"
            raise InvalidValue(f'after the time there must be {wanted}, for example "30 9 * * MON-FRI {self._example}", got {line!r}')
        name, note = self._describe(command)
        self.entries.append(
            Entry(
                line=number,
                name=name,
                rule=rule,
                command=command,
                input=feed,
                user=user,
                environment=dict(self._environment),
                note=note,
                zoned=self._zoned,
            )
        )

    def _split(self, line: str) -> tuple[str, str]:
        """Split a line into time and rest. Only the time's white space is normalized: that of a command is significant."""
        if line.lower().partition(" ")[0].partition("\t")[0] == "@reboot":
            raise InvalidValue("@reboot has no instant: run the command from what starts the machine, such as a systemd unit")
        fields = 1 if line.startswith("@") else 5
        words = line.split(None, fields)
        if len(words) < fields:
            raise InvalidValue(f'expected a comment, NAME=VALUE, or five fields and a command such as "*/5 * * * * {self._example}"')
        rest = words[fields] if len(words) > fields else ""
        return " ".join(words[:fields]), rest.replace("\t", " ", 1) if self._system else rest

    def _describe(self, command: str) -> tuple[str, str]:
        named = _NAME.fullmatch(self.comment)
        wanted = named[1] if named else _program(command)
        name, number = wanted, self._numbers.get(wanted, 1)
        while name in self._names:
            number += 1
            name = f"{wanted}-{number}"
        self._names.add(name)
        self._numbers[wanted] = number
        return name, "" if named else self.comment

    @property
    def _example(self) -> str:
        return "root /usr/bin/report" if self._system else "/usr/bin/report"


def _unquoted(value: str) -> str:
    value = value.strip()
    quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted else value


def _split_input(command: str) -> tuple[str, str | None]:
    """Interpret `%`: the first one ends the command, later ones end lines of its standard input; `\\%` is a literal one."""
    command, *lines = (part.replace("\\%", "%") for part in _PERCENT.split(command))
    return command.strip(), "\n".join(lines) + "\n" if lines else None


def _program(command: str) -> str:
    """Return a short name for a command: its program without the path."""
    rest = command[match.end() :] if (match := _PREAMBLE.match(command)) else command
    words = (rest or command).split()
    program = words[0].rstrip("/").rpartition("/")[2] if words else ""
    return _ODD.sub("-", program).strip("-") or "entry"
