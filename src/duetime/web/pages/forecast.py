"""The forecast of a day: when the schedules will start tasks, which of them meet, and where slots will be too few."""

from __future__ import annotations

from duetime.client.schedules.forecasting import Ahead
from duetime.clock import to_datetime
from duetime.web.heat_map import columns, heat_map, levels
from duetime.web.page import Page, View
from duetime.web.pages.schedules import service
from duetime.web.visit import Visit

MOST_OCCURRENCES = 100_000  # about a second of work
DARKEST = 8
COLLISIONS = 10
EVERY = 15.0


async def view(visit: Visit) -> View:
    schedules = service(visit)

    async def look() -> Ahead:
        return await schedules.forecast(days=1, limit=MOST_OCCURRENCES)

    # people with the same handlers see the same forecast, and it is computed once for all of them
    seen = await visit.sight.see(f"forecast of {'|'.join(visit.caller.handlers)}", look)
    ahead, found = seen.value, seen.value.forecast
    tz = visit.preferences.tz
    hours = columns(found.quarters, found.start_at, found.until_at, tz)
    darkest = sorted(found.quarters, key=lambda each: (-each.runs, each.at))[:DARKEST]
    facts = {
        "forecast": found,
        "until": to_datetime(found.until_at),
        "ahead": ahead,
        "hours": hours,
        "drawing": heat_map(hours) if found.runs else None,
        "levels": levels(hours),
        "darkest": [(to_datetime(each.at).astimezone(tz), each) for each in darkest],
        "collisions": [(to_datetime(each.first_at).astimezone(tz), each) for each in found.collisions[:COLLISIONS]],
        "further": max(0, len(found.collisions) - COLLISIONS) + found.further_collisions,
    }
    return View(title="Forecast", facts=facts, crumbs=(("/schedules", "Schedules"),), every=EVERY)


PAGE = Page(path="/forecast", template="forecast.html", view=view)
