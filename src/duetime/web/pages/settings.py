"""Settings: theme, zone, density and keys, kept in the browser; and tokens, for those who may manage them."""

from __future__ import annotations

from zoneinfo import available_timezones

from duetime.errors import InvalidValue
from duetime.model.access import Scope
from duetime.web.page import Action, Done, Page, View
from duetime.web.visit import DENSITIES, THEMES, Visit, is_zone


async def view(visit: Visit) -> View:
    tokens = await visit.app.tokens.list() if visit.may("admin") else None
    facts = {"themes": THEMES, "densities": DENSITIES, "zones": sorted(available_timezones()), "tokens": tokens, "scopes": list(Scope)}
    return View(title="Settings", facts=facts, every=None)


async def save(visit: Visit) -> Done:
    """Keep what was chosen in cookies, which the frame sets on the answer."""
    theme, density, zone = visit.field("theme"), visit.field("density"), visit.field("zone")
    if theme not in THEMES or density not in DENSITIES:
        raise InvalidValue(f"choose one of {', '.join(THEMES)}, and one of {', '.join(DENSITIES)}")
    if not is_zone(zone):
        raise InvalidValue(f"{zone[:80]!r} is not a time zone; they look like Europe/Berlin")
    keys = "on" if visit.field("keys") == "on" else "off"
    kept = {"duetime-theme": theme, "duetime-density": density, "duetime-zone": zone, "duetime-keys": keys}
    return Done(said="Saved in this browser.", to=visit.link("settings"), cookies=kept)


async def revoke(visit: Visit) -> Done:
    name = visit.needed("name")
    await visit.app.tokens.revoke(name, by=visit.caller)
    return Done(said=f"The token {name} is revoked; its sessions end within five seconds.")


PAGE = Page(
    path="/settings",
    template="settings.html",
    view=view,
    actions={"save": Action(run=save, scope=Scope.READ), "revoke": Action(run=revoke, scope=Scope.ADMIN)},
)
