"""A page as data: its address, how its facts are read, which template shows them, and which actions it has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.model.access import Scope

if TYPE_CHECKING:
    from duetime.web.visit import Visit


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a page shows now. `facts` are what its template is given; `crumbs` are the pages above it, as address and name.

    `every`: after how many seconds the browser asks again; None if nothing will change any more. `status` is the answer's.
    """

    title: str
    facts: Mapping[str, Any]
    crumbs: tuple[tuple[str, str], ...] = ()
    every: float | None = 2.0
    status: int = 200


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What an action did, in a sentence, and the address to go to; without one the page is shown again.

    `cookies` are preferences to be kept in the browser; they need an address to go to."""

    said: str
    to: str | None = None
    good: bool = True
    cookies: Mapping[str, str] = {}


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """What a form of a page does. `scope` is checked before it runs, and handlers by the action itself."""

    run: Callable[[Visit], Awaitable[Done]]
    scope: Scope = Scope.OPERATE


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page. `path` is its address below `/ui`, with parts such as `{id}`; `template` the file that shows its facts.

    With `name` it is in the navigation (`more`: behind "More"), and `letter` leads there after `g`. A form of the page posts to the
    page's own address, with the name of an action in the field `do`. `whole`: not for tokens that are restricted to some handlers.
    """

    path: str
    template: str
    view: Callable[[Visit], Awaitable[View]]
    actions: Mapping[str, Action] = {}
    name: str = ""
    letter: str = ""
    icon: str = ""
    more: bool = False
    scope: Scope = Scope.READ
    whole: bool = False
