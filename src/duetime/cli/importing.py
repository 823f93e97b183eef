"""Finding the App that an import string names."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from duetime.app.app import App

FORM = "expected module:name, such as shop.tasks:app"


def find_app(path: str, url: str | None) -> App:
    """Import `module:name`, with the current folder first on the path.

    `url` is put into the environment, where the App, its handlers and its sub-processes find it. An App that names another store
    is refused: its handlers would submit to one store and its worker would run from the other.
    """
    from duetime.app.app import App

    module_name, _, attributes = path.partition(":")
    if not module_name or not attributes:
        raise click.UsageError(f"APP is {path!r}; {FORM}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if url is not None:
        os.environ["DUETIME_URL"] = url
    found = _import(module_name)
    for name in attributes.split("."):
        if not hasattr(found, name):
            apps = [each for each, value in vars(found).items() if isinstance(value, App)] if found is sys.modules.get(module_name) else []
            hint = f"it has {', '.join(apps)}" if apps else FORM
            raise click.UsageError(f"{module_name} has no {attributes!r}; {hint}")
        found = getattr(found, name)
    if not isinstance(found, App):
        raise click.UsageError(f"{path} is a {type(found).__name__}, not an App; {FORM} where `app = App(…)`")
    if url is not None and found.config.url != url:
        raise click.UsageError(f"{path} names its own store, {found.url}; --url works with `App()` that leaves the URL open")
    return found


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        missing = problem.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise click.UsageError(f"there is no module {missing!r} in {os.getcwd()} or among the installed packages; {FORM}") from None
        raise click.ClickException(f"{name} cannot be imported: it needs the module {missing!r}, which is not installed") from problem
    except Exception as problem:
        raise click.ClickException(f"{name} cannot be imported: {type(problem).__name__}: {problem}{_location(problem)}") from problem


def _location(problem: Exception) -> str:
    """Return where an import failed, unless the message itself says it."""
    if isinstance(problem, SyntaxError) and problem.filename is not None:
        return ""
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if not frame.filename.startswith("<frozen ")]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})"
