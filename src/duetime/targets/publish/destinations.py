"""What a message is published to: a subject, stream, topic or routing key, each with the rules of its broker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from duetime.errors import InvalidValue
from duetime.targets.publish.address import Kind
from duetime.targets.templates import Facts, Reference, TextTemplate, UnfitReference


class Form(NamedTuple):
    """How destinations of one kind of broker look. `separator` divides levels that a broker or its users tell apart."""

    called: str
    separator: str
    refused: re.Pattern[str]  # characters that no destination has
    longest: int  # bytes
    levels: bool = False  # whether each level must have a name


_CONTROL = r"\x00-\x1f\x7f"
FORMS: dict[Kind, Form] = {
    "nats": Form("subject", ".", re.compile(rf"[\s*>{_CONTROL}]"), 1_000, levels=True),
    "redis": Form("stream", "", re.compile(rf"[{_CONTROL}]"), 1_000),
    "mqtt": Form("topic", "/", re.compile(rf"[+#{_CONTROL}]"), 1_000),
    "amqp": Form("routing key", ".", re.compile(rf"[{_CONTROL}]"), 255),
    "kafka": Form("topic", "", re.compile(r"[^a-zA-Z0-9._-]"), 249),
}


class Destination(TextTemplate):
    """A destination with references.

    The value of a reference beside other text is one level, whatever it contains: it cannot lead elsewhere. A reference that is all of
    the destination can have levels, but cannot begin with `$`, where brokers have their own.
    """

    def __init__(self, text: str, kind: Kind, names: Sequence[str] | None = None) -> None:
        super().__init__(text, "to", names)
        self._form = FORMS[kind]
        problem = self._problem("".join(part if isinstance(part, str) else "x" for part in self.parts))
        if problem:
            raise InvalidValue(f"to must be a {self._form.called} to which one can publish: {text!r} {problem}")

    def fill(self, facts: Facts) -> str:
        filled = "".join(part if isinstance(part, str) else self._value(part, facts) for part in self.parts)
        problem = self._problem(filled)
        if not problem and filled.startswith("$") and isinstance(self.parts[0], Reference):
            problem = "begins with $, which belongs to the broker itself"
        if problem:
            raise UnfitReference(f"to would be the {self._form.called} {filled[:200]!r}, which {problem}")
        return filled

    def _value(self, part: Reference, facts: Facts) -> str:
        value = part.plain(facts, self.where)
        if len(self.parts) > 1 and self._form.separator and self._form.separator in value:
            wrong = f"its value {value[:200]!r} has a {self._form.separator!r}"
            raise UnfitReference(f"to refers to {{{part.text}}} as one part of a {self._form.called}, but {wrong}")
        return value

    def _problem(self, text: str) -> str | None:
        form = self._form
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            return "is not Unicode text"
        if not text:
            return "is empty"
        if size > form.longest:
            return f"has {size:,} bytes, and at most {form.longest:,} are allowed"
        found = form.refused.search(text)
        if found:
            return f"has {found[0]!r}"
        if form.levels and "" in text.split(form.separator):
            return f"has nothing between two {form.separator!r}, or at an end"
        return None
