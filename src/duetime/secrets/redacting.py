"""Blanks the values of secrets in what is kept of an attempt: results, errors, tracebacks, output, progress.

A value is looked for as it is, percent-encoded, in base64 (also in the middle of a longer text, as in `Basic` authentication), and escaped
for JSON, Python and HTML. Its lines are looked for too, because output is written by lines. What is shorter than six characters is left
alone: it would be found in ordinary text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, AnyStr
from urllib.parse import quote, quote_plus

import msgspec

from duetime.model.outcome import Ended
from duetime.model.task import ErrorInfo

SHORTEST = 6  # characters
BLANK = "***"
_BLANK = BLANK.encode()
SAFE = ("", "/", "/:@", "!$'()*,;:@/?", "!$&'()*+,;=:@/?")  # what programs leave as it is when they percent-encode


class Redactor:
    """Blanks some values. Attempts that use no secret have none."""

    def __init__(self, forms: Iterable[str]) -> None:
        # the longest first: a short form may be a part of a longer one
        self._forms = sorted(set(forms), key=lambda form: (-len(form), form))

    @classmethod
    def of(cls, values: Iterable[str]) -> Redactor:
        """Return one for some values in all their forms."""
        return cls(form for value in values for form in forms_of(value))

    def __or__(self, other: Redactor) -> Redactor:
        return self if other is self else Redactor([*self._forms, *other._forms])

    def __repr__(self) -> str:
        return "<Redactor>"

    @cached_property
    def _encoded(self) -> list[bytes]:
        return [form.encode() for form in self._forms]

    @property
    def longest(self) -> int:
        """The most bytes of which a form consists."""
        return max(map(len, self._encoded), default=0)

    def text(self, text: str) -> str:
        """Blank a text, also a form of which the text's cut ends have at least six characters."""
        for form in self._forms:
            text = text.replace(form, BLANK)
        for form in self._forms:
            text = _without_end(_without_beginning(text, form, BLANK), form, BLANK)
        return text

    def lines(self, data: bytes, *, last: bool = True) -> bytes:
        """Blank lines of bytes in the same way. The last one has no end yet unless `last`: its cut end is left alone."""
        for form in self._encoded:
            data = data.replace(form, _BLANK)
        lines = data.split(b"\n")
        for index, line in enumerate(lines if last else lines[:-1]):
            for form in self._encoded:
                line = _without_end(_without_beginning(line, form, _BLANK), form, _BLANK)
            lines[index] = line
        return b"\n".join(lines)

    def json(self, data: bytes) -> bytes:
        """Blank the texts and numbers of a JSON document; it stays one."""
        try:
            value = msgspec.json.decode(data)
            blanked = self._blank(value)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return self.lines(data)
        return data if blanked is value else msgspec.json.encode(blanked)

    def _blank(self, value: Any) -> Any:
        """Return a decoded document without the values, the same object if none was found."""
        match value:
            case str():
                text = self.text(value)
                return value if text == value else text
            case dict():
                blanked = {self._blank(name): self._blank(item) for name, item in value.items()}
                return value if all(map(_same, _flat(blanked), _flat(value))) else blanked
            case list():
                items = [self._blank(item) for item in value]
                return value if all(map(_same, items, value)) else items
            case int() | float() if not isinstance(value, bool):
                written = msgspec.json.encode(value).decode()
                text = self.text(written)
                return value if text == written else text
        return value

    def error(self, error: ErrorInfo) -> ErrorInfo:
        return ErrorInfo(**{name: self.text(text) for name, text in msgspec.structs.asdict(error).items()})

    def ended(self, ended: Ended) -> Ended:
        """Return how an attempt ended without the values."""
        changes: dict[str, Any] = {}
        for field in ("result", "detail"):
            data = getattr(ended, field, None)
            if data is not None:
                changes[field] = self.json(data)
        if ended.error is not None:
            changes["error"] = self.error(ended.error)
        return msgspec.structs.replace(ended, **changes) if changes else ended


def forms_of(value: str) -> Iterator[str]:
    """Yield the forms in which a value is looked for."""
    for part in {value, value.strip(), *(line.strip() for line in value.splitlines())}:
        if len(part) >= SHORTEST:
            yield from _encodings(part)


def _encodings(text: str) -> Iterator[str]:
    import html  # its table of entities is large, and few programs have secrets

    data = text.encode()
    yield text
    for safe in SAFE:
        percent = quote(text, safe=safe)
        yield from (percent, _lower(percent))
    yield from (quote_plus(text), _lower(quote_plus(text)))
    yield from (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], msgspec.json.encode(text).decode()[1:-1])
    yield from (repr(text)[1:-1], repr(data)[2:-1], html.escape(text))
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield from (encode(data).decode(), encode(data).decode().rstrip("="))
        for before in range(3):
            # only the characters that no neighbour has a part in
            begin, end = -(-8 * before // 6), 8 * (before + len(data)) // 6
            yield encode(bytes(before) + data).decode()[begin:end]


def _lower(percent: str) -> str:
    """Write the escapes of a percent-encoded text in lower case, as some programs do."""
    first, *others = percent.split("%")
    return "%".join([first, *(other[:2].lower() + other[2:] for other in others)])


def _without_end(text: AnyStr, form: AnyStr, blank: AnyStr) -> AnyStr:
    """Blank the end of a text if it is the beginning of a form: the text was cut there."""
    at = text.find(form[:SHORTEST], max(0, len(text) - len(form) + 1))
    while at != -1:
        if form.startswith(text[at:]):
            return text[:at] + blank
        at = text.find(form[:SHORTEST], at + 1)
    return text


def _without_beginning(text: AnyStr, form: AnyStr, blank: AnyStr) -> AnyStr:
    """Blank the beginning of a text if it is the end of a form."""
    at = text.rfind(form[-SHORTEST:], 0, len(form) - 1)
    while at != -1:
        if form.endswith(text[: at + SHORTEST]):
            return blank + text[at + SHORTEST :]
        at = text.rfind(form[-SHORTEST:], 0, at + SHORTEST - 1)
    return text


def _same(one: object, other: object) -> bool:
    return one is other


def _flat(mapping: dict[Any, Any]) -> list[Any]:
    return [part for pair in mapping.items() for part in pair]
