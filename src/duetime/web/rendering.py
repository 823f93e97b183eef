"""Templates: everything that they are given is escaped. What changes while a page is open is in named parts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from duetime.web.charts import bars, sparkline

_INDENTED = re.compile(r">\n\s+<")  # between tags; what people wrote has no tags
_TIMES = re.compile(r"(<time [^>]*data-rel[^>]*>)[^<]*")


class Parts:
    """The parts of one page, gathered while its template is written, each with a tag that changes when its content does."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        self.texts: dict[str, str] = {}

    def part(self, name: str, caller: Callable[[], str], label: str = "") -> Markup:
        """Write a part: `{% call part("rows") %}…{% endcall %}`."""
        body = str(caller())
        tag = hashlib.blake2b(_TIMES.sub(r"\1", body).encode("utf-8", "replace"), digest_size=6).hexdigest()
        labelled = Markup(' aria-label="{}"').format(label) if label else Markup("")
        text = Markup('<section data-part="{}" data-tag="{}"{}>{}</section>').format(name, tag, labelled, Markup(body))
        self.tags[name], self.texts[name] = tag, text
        return text

    def changed(self, known: Mapping[str, str]) -> list[str]:
        """Return the parts that differ from what the browser has."""
        return [text for name, text in self.texts.items() if known.get(name) != self.tags[name]]


@cache
def environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("duetime.web", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals |= {"sparkline": sparkline, "bars": bars}
    return made


def render(template: str, facts: Mapping[str, Any]) -> str:
    """Write a page. What cannot be sent, such as half of a pair of surrogates, is shown as a replacement."""
    text = environment().get_template(template).render(facts)
    return _INDENTED.sub(">\n<", text).encode("utf-8", "replace").decode()


def read_known(text: str) -> dict[str, str]:
    """Read the header in which a browser says what it has: `name=tag` and so on, with commas between."""
    pairs = (pair.partition("=") for pair in text[:2_000].split(","))
    return {name.strip(): tag.strip() for name, _, tag in pairs if tag}
