"""Failures: one row for each kind, the latest first, with a trend and marks."""

from __future__ import annotations

from collections import Counter
from functools import partial

import msgspec

from duetime.client.failures import Failure
from duetime.web.page import Page, View
from duetime.web.visit import Visit

RANGES = {"1h": (3_600.0, "the last hour"), "24h": (86_400.0, "the last 24 hours"), "7d": (604_800.0, "the last 7 days")}
USUAL = "24h"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of failure, with its part of all failing attempts of its handler."""

    failure: Failure
    of_handler: int


def chosen_range(visit: Visit) -> str:
    wanted = visit.query.get("range", USUAL)
    return wanted if wanted in RANGES else USUAL


async def view(visit: Visit) -> View:
    wanted = chosen_range(visit)
    seconds, spoken = RANGES[wanted]
    seen = await visit.sight.see(f"failures {wanted}", partial(visit.app.failures.list, since=seconds))
    found = [each for each in seen.value if visit.may_see(each.handler)]
    attempts = Counter[str]()
    for each in found:
        attempts[each.handler] += each.attempts
    handler, muted = visit.query.get("handler") or None, visit.query.get("muted") == "yes"
    of_handler = [each for each in found if handler in (None, each.handler)]
    shown = [each for each in of_handler if muted or each.muted_until_at is None]
    facts = {
        "rows": [Row(failure=each, of_handler=attempts[each.handler]) for each in shown],
        "seen": seen,
        "ranges": [(name, visit.here(range=None if name == USUAL else name), name == wanted) for name in RANGES],
        "spoken": spoken,
        "handlers": [
            (name, number, visit.here(handler=None if name == handler else name), name == handler)
            for name, number in attempts.most_common(30)
        ],
        "muted": muted,
        "muted_number": sum(each.muted_until_at is not None for each in of_handler),
        "tasks": sum(each.tasks for each in shown),
        "attempts": sum(each.attempts for each in shown),
        "last": None if shown else await _last(visit, handler),
    }
    return View(title="Failures", facts=facts, every=5.0)


async def _last(visit: Visit, handler: str | None) -> Failure | None:
    """Return the kind that was seen last of all, for a page that has nothing else to show."""
    seen = await visit.sight.see("failures ever", partial(visit.app.failures.list, since=92 * 86_400.0))
    return next((each for each in seen.value if visit.may_see(each.handler) and handler in (None, each.handler)), None)


PAGE = Page(path="/failures", template="failures.html", view=view, name="Failures", letter="f", icon="failures")
