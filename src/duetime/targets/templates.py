"""Templates of targets: JSON values, URLs and headers with references such as `{payload.order.id}`.

A reference is a path and nothing more: there are no expressions, so a template that came over an API can neither run code nor take
long. `{{` and `}}` are braces themselves. The roots:

| `{payload.order.id}` | what the task was submitted with; a number is an index into a list |
| `{meta.tenant}` | its meta |
| `{task.id}` | the task itself: `TASK` lists what can be named |
| `{now}` | when the attempt builds its request, as `2030-01-01T09:00:00.000000Z` |
| `{uuid}` | random, the same everywhere in one attempt |
| `{artifact}` | where the artifact of a command is; for commands that have one |

A text that is exactly one reference takes the value with its type; otherwise the value becomes part of the text.
Templates are checked where they are declared; a value that is missing when one is filled raises `MissingReference`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

import msgspec

from duetime.clock import SECOND, Instant, to_datetime
from duetime.errors import Fatal, InvalidValue
from duetime.store.values import ClaimedTask
from duetime.targets.occurrence import since_of

Json: TypeAlias = Any

_PIECES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")
_SEGMENT = re.compile(r"[^\s.{}\[\]\"']+")
_REFUSED_IN_HEADERS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<query>\?[^#]*)?(?P<fragment>#.*)?", re.DOTALL
)
_DEEPEST = 32  # levels of a JSON template


class MissingReference(Fatal):
    """A template names a value that this task does not have."""


class UnfitReference(Fatal):
    """A template names a value that cannot stand there, such as an object in a URL."""


def moment(instant: Instant) -> str:
    """Return an instant as it is sent: ISO 8601 in UTC."""
    seconds, micros = divmod(instant, SECOND)
    return f"{_second(seconds)}.{micros:06}Z"


@lru_cache(maxsize=256)  # a worker sends many requests in one second, and the calendar costs 3 µs
def _second(seconds: int) -> str:
    return to_datetime(seconds * SECOND).isoformat()[:19]


# what can be named of a task, each with its value
TASK: Mapping[str, Callable[[ClaimedTask], Json]] = {
    "id": lambda task: task.id,
    "handler": lambda task: task.handler,
    "attempt": lambda task: task.attempt,
    "fence": lambda task: task.fence,
    "due_at": lambda task: moment(task.since_at),
    "planned_at": lambda task: None if task.planned_at is None else moment(task.planned_at),
    "since": lambda task: None if task.planned_at is None else moment(since_of(task.meta) or task.planned_at),
    "submitted_at": lambda task: moment(task.submitted_at),
    "submitted_by": lambda task: task.submitted_by,
    "schedule": lambda task: task.schedule,
    "key": lambda task: task.key,
    "collection": lambda task: task.collection,
    "priority": lambda task: task.priority,
}
ROOTS = ("payload", "meta", "task", "now", "uuid")
ARTIFACT = "artifact"


class Facts:
    """What references lead to, for one attempt. `new_uuid` makes a random id; it is asked once, if a template needs one."""

    __slots__ = ("_new_uuid", "_uuid", "artifact", "now", "payload", "task")

    def __init__(
        self, task: ClaimedTask, payload: Mapping[str, Json], now: Instant, new_uuid: Callable[[], object], artifact: str | None = None
    ) -> None:
        self.task = task
        self.payload = payload
        self.now = now
        self.artifact = artifact
        self._new_uuid = new_uuid
        self._uuid: str | None = None

    @property
    def uuid(self) -> str:
        if self._uuid is None:
            self._uuid = str(self._new_uuid())
        return self._uuid


class Reference(NamedTuple):
    """One `{root.path}`."""

    text: str
    root: str
    path: tuple[str, ...]

    def value(self, facts: Facts, where: str) -> Json:
        """Return what it leads to; MissingReference if there is nothing."""
        match self.root:
            case "payload":
                return self._walk(facts.payload, where)
            case "meta":
                name = ".".join(self.path)  # a name in meta may have dots
                if name not in facts.task.meta:
                    raise self._missing(where, f"the task's meta has no {name!r}")
                return facts.task.meta[name]
            case "task":
                found = TASK[self.path[0]](facts.task)
                if found is None:
                    raise self._missing(where, f"the task has no {self.path[0]}")
                return found
            case "now":
                return moment(facts.now)
            case "artifact":
                return facts.artifact
            case _:
                return facts.uuid

    def _walk(self, value: Json, where: str) -> Json:
        for depth, segment in enumerate(self.path):
            if isinstance(value, Mapping) and segment in value:
                value = value[segment]
            elif isinstance(value, list) and segment.isascii() and segment.isdigit() and int(segment) < len(value):
                value = value[int(segment)]
            else:
                raise self._missing(where, f"the payload has no {'.'.join(self.path[: depth + 1])}")
        return value

    def _missing(self, where: str, why: str) -> MissingReference:
        return MissingReference(f"{where} refers to {{{self.text}}}, but {why}")

    def plain(self, facts: Facts, where: str) -> str:
        """Return its value as a part of a text."""
        value = self.value(facts, where)
        if isinstance(value, str):
            return value
        if value is None or isinstance(value, Mapping | list):
            kind = "null" if value is None else "a list" if isinstance(value, list) else "an object"
            raise UnfitReference(f"{where} refers to {{{self.text}}} inside a text, but its value is {kind}")
        return msgspec.json.encode(value).decode()


Parts: TypeAlias = tuple[str | Reference, ...]


def parse(text: str, where: str, names: Sequence[str] | None = None, *, artifact: bool = False) -> Parts:
    """Return a text as its literal parts and references. `names` are those that a payload can have, if that is known.

    `artifact`: it may refer to one.
    """
    parts: list[str | Reference] = []
    literal: list[str] = []
    for piece in _PIECES.finditer(text):
        match piece[0]:
            case "{{" | "}}" as brace:
                literal.append(brace[0])
            case "{" | "}" as brace:
                raise InvalidValue(
                    f"{where} has a single {brace!r} in {text!r}; a reference is {{payload.name}}, and {brace * 2} is the brace"
                )
            case _ if piece[1] is not None:
                if literal:
                    parts.append("".join(literal))
                    literal.clear()
                parts.append(_reference(piece[1], where, names, (*ROOTS, ARTIFACT) if artifact else ROOTS))
            case plain:
                literal.append(plain)
    return (*parts, "".join(literal)) if literal else tuple(parts)


def _reference(text: str, where: str, names: Sequence[str] | None, roots: Sequence[str]) -> Reference:
    root, *path = text.split(".")
    if root == ARTIFACT and root not in roots:
        raise InvalidValue(f"{where} refers to {{{text}}}, which is for commands that name an artifact: artifact='monthly'")
    if root not in roots:
        raise InvalidValue(f"{where} refers to {{{text}}}; a reference begins with {', '.join(roots)}, such as {{payload.order_id}}")
    if not all(_SEGMENT.fullmatch(segment) for segment in path):
        raise InvalidValue(f"{where} refers to {{{text}}}, which is not a path of names such as {{payload.order.id}}")
    if root in ("now", "uuid", ARTIFACT) and path:
        raise InvalidValue(f"{where} refers to {{{text}}}, but {{{root}}} has no parts")
    if root == "meta" and not path:
        raise InvalidValue(f"{where} refers to {{meta}}; name one of its values, such as {{meta.tenant}}")
    if root == "task" and (len(path) != 1 or path[0] not in TASK):
        raise InvalidValue(f"{where} refers to {{{text}}}; of a task it can name {', '.join(TASK)}")
    if root == "payload" and path and names is not None and path[0] not in names:
        raise InvalidValue(f"{where} refers to {{{text}}}, but the payload has only {', '.join(names) or 'no fields'}")
    return Reference(text, root, tuple(path))


def _fill(parts: Parts, facts: Facts, where: str) -> str:
    return "".join([part if isinstance(part, str) else part.plain(facts, where) for part in parts])


class TextTemplate:
    """A text with references: an argument of a command, for example."""

    def __init__(self, text: str, where: str, names: Sequence[str] | None = None, *, artifact: bool = False) -> None:
        if not isinstance(text, str):
            raise InvalidValue(f"{where} must be text, got {type(text).__name__}")
        self.where = where
        self.parts = parse(text, where, names, artifact=artifact)

    def fill(self, facts: Facts) -> str:
        """Return the text with the values of one attempt."""
        return _fill(self.parts, facts, self.where)


class HeaderTemplate(TextTemplate):
    """The value of a header: one line, whatever the values are."""

    def __init__(self, text: str, where: str, names: Sequence[str] | None = None) -> None:
        super().__init__(text, where, names)
        if _REFUSED_IN_HEADERS.search("".join(part for part in self.parts if isinstance(part, str))):
            raise InvalidValue(f"{where} must be one line without control characters, got {text!r}")

    def fill(self, facts: Facts) -> str:
        value = super().fill(facts)
        if _REFUSED_IN_HEADERS.search(value) or not _is_encodable(value):
            raise UnfitReference(f"{self.where} must be one line without control characters, got {value[:200]!r}")
        return value


def _is_encodable(text: str) -> bool:
    """Return whether a text has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class JsonTemplate:
    """A JSON value with references in its texts, also in the names of objects."""

    def __init__(self, value: Json, where: str, names: Sequence[str] | None = None) -> None:
        self.where = where
        self._names = names
        self._node = self._compile(value, 0)

    def fill(self, facts: Facts) -> Json:
        """Return the value with the values of one attempt."""
        return self._filled(self._node, facts)

    def _compile(self, value: Json, depth: int) -> Json:
        if depth > _DEEPEST:
            raise InvalidValue(f"{self.where} is nested deeper than {_DEEPEST} levels")
        if isinstance(value, str):
            parts = parse(value, self.where, self._names)
            return "".join(part for part in parts if isinstance(part, str)) if _is_literal(parts) else parts
        if isinstance(value, Mapping):
            if not all(isinstance(name, str) for name in value):
                raise InvalidValue(f"{self.where} must be JSON: the names of an object are text")
            return {self._compile(name, depth + 1): self._compile(each, depth + 1) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._compile(each, depth + 1) for each in value]
        if value is None or isinstance(value, bool | int | float):
            return value
        raise InvalidValue(f"{self.where} must be JSON (objects, lists, texts, numbers, true, false, null), got {type(value).__name__}")

    def _filled(self, node: Json, facts: Facts) -> Json:
        if isinstance(node, tuple):
            return node[0].value(facts, self.where) if len(node) == 1 else _fill(node, facts, self.where)
        if isinstance(node, dict):
            return {
                name if isinstance(name, str) else _fill(name, facts, self.where): self._filled(each, facts) for name, each in node.items()
            }
        if isinstance(node, list):
            return [self._filled(each, facts) for each in node]
        return node


def _is_literal(parts: Parts) -> bool:
    return all(isinstance(part, str) for part in parts)


class UrlTemplate:
    """A URL whose path and query may have references; its host only if `hosts` lists those that it may become.

    A value is one segment of the path or one part of the query, whatever it contains: it can neither lead to another path nor add a
    parameter. `*.example.com` among the hosts stands for one name before the dot.
    """

    def __init__(self, url: str, where: str = "url", names: Sequence[str] | None = None, hosts: Sequence[str] = ()) -> None:
        if not isinstance(url, str):
            raise InvalidValue(f"{where} must be text such as https://example.com/orders/{{payload.order_id}}, got {type(url).__name__}")
        self.where = where
        self.text = url
        self._hosts = tuple(host.lower() for host in hosts)
        split = _URL.fullmatch(url)
        if split is None:
            raise InvalidValue(f"{where} must begin with http:// or https:// and a host, got {url!r}")
        if split["fragment"]:
            raise InvalidValue(f"{where} must not have a fragment (#…), which is never sent, got {url!r}")
        self.scheme = split["scheme"].lower()
        self._authority = parse(split["authority"], f"the host of {where}", names)
        self._path = parse(split["path"] or "/", where, names)
        self._query = parse(split["query"] or "", where, names)
        if self.has_open_host and not self._hosts:
            raise InvalidValue(f"{where} has a reference in its host; list the hosts that it may become with hosts=[…], got {url!r}")
        if hosts and not self.has_open_host:
            raise InvalidValue(f"hosts= is for a reference in the host of {where}, and {url!r} has none there")
        self._origin = None if self.has_open_host else f"{self.scheme}://{''.join(map(str, self._authority))}"
        self._literal = url if _is_literal((*self._authority, *self._path, *self._query)) and "{" not in url and "}" not in url else None

    @property
    def has_open_host(self) -> bool:
        """Whether its host has a reference, so that it is known only when it is filled."""
        return not _is_literal(self._authority)

    @property
    def origin(self) -> str:
        """Scheme, host and port, if they have no reference."""
        return f"{self.scheme}://{''.join(str(part) for part in self._authority)}"

    def example(self) -> str:
        """Return a URL of the same form with a letter for each reference, for checks of the form."""
        host = self._hosts[0].replace("*", "x") if self.has_open_host else "".join(map(str, self._authority))
        return f"{self.scheme}://{host}" + "".join(part if isinstance(part, str) else "x" for part in (*self._path, *self._query))

    def fill(self, facts: Facts) -> str:
        """Return the URL with the values of one attempt, ready to be sent."""
        if self._literal is not None:
            return self._literal
        origin = f"{self.scheme}://{self._filled_authority(facts)}" if self._origin is None else self._origin
        query = "".join(self._encoded(self._query, facts)) if self._query else ""
        return f"{origin}{self._filled_path(facts)}{query}"

    def _filled_authority(self, facts: Facts) -> str:
        authority = _fill(self._authority, facts, self.where)
        if self.has_open_host and not any(_covers(host, authority.lower()) for host in self._hosts):
            raise UnfitReference(f"{self.where} would lead to the host {authority[:200]!r}, which is not one of {', '.join(self._hosts)}")
        return authority

    def _filled_path(self, facts: Facts) -> str:
        filled = self._encoded(self._path, facts)
        if "" in filled:
            empty = next(part for part, text in zip(self._path, filled, strict=True) if isinstance(part, Reference) and not text)
            raise UnfitReference(f"{self.where} refers to {{{empty.text}}} in its path, but its value is empty")
        path = "".join(filled)
        if "/." in path and not _is_literal(self._path) and any(segment in (".", "..") for segment in path.split("/")):
            raise UnfitReference(f"{self.where} would have a segment that leads to another path: {path[:200]!r}")
        return path

    def _encoded(self, parts: Parts, facts: Facts) -> list[str]:
        return [part if isinstance(part, str) else self._quoted(part, facts) for part in parts]

    def _quoted(self, reference: Reference, facts: Facts) -> str:
        value = reference.plain(facts, self.where)
        if _PLAIN.fullmatch(value):  # numbers and most keys: `quote` takes ten times as long
            return value
        if not _is_encodable(value):
            raise UnfitReference(f"{self.where} refers to {{{reference.text}}}, but its value is not Unicode text")
        return quote(value, safe="")


def _covers(host: str, authority: str) -> bool:
    """Return whether a host is the listed one; one with `*.` stands for exactly one more label."""
    if not host.startswith("*."):
        return host == authority
    label, dot, rest = authority.partition(".")
    return dot == "." and rest == host[2:] and re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", label) is not None
