"""The options that define a stored target, shared by `handlers put` and `schedules put`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from duetime.cli import parsing
from duetime.cli.session import remember_url
from duetime.errors import InvalidValue

if TYPE_CHECKING:
    from duetime.targets.stored.definitions import Definition

Function = TypeVar("Function", bound=Callable[..., Any])

_STORES = ("sqlite", "postgres", "postgresql")
BROKERS = ("nats", "redis", "valkey", "mqtt", "amqp")


def _pair(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, str] | None:
    """Read USER:SECRET."""
    if value is None:
        return None
    user, colon, secret = value.rpartition(":")
    if not colon or not user or not secret:
        raise click.BadParameter(
            "expected USER:SECRET, where SECRET is the name of a stored secret with the password", ctx=ctx, param=param
        )
    return user, secret


# What a request can have, for both commands.
_OPTIONS = (
    click.option("--url", "target_url", metavar="URL", help="What is called: http:// or https://, with references such as {payload.id}."),
    click.option("--method", metavar="NAME", help="The method of the request: POST unless given."),
    click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, callback=parsing.text_map, help="A header; may be repeated."),
    click.option(
        "--secret-header",
        "secret_headers",
        metavar="NAME=SECRET",
        multiple=True,
        callback=parsing.text_map,
        help="A header whose value is a stored secret; may be repeated.",
    ),
    click.option("--body", metavar="JSON|@FILE|-", callback=parsing.text, help="The body, with references; otherwise the payload."),
    click.option("--bearer", metavar="SECRET", help="Authenticate with the token in this stored secret."),
    click.option("--basic", metavar="USER:SECRET", callback=_pair, help="Authenticate with a user and the password in a stored secret."),
    click.option("--sign", "signs", metavar="SECRET", multiple=True, help="Sign with this stored secret (Standard Webhooks)."),
)

store_option = click.option(
    "--store",
    metavar="URL",
    expose_value=False,
    callback=remember_url,
    help="The store, or a server (https://…, with DUETIME_TOKEN); otherwise that of DUETIME_APP, DUETIME_URL, or sqlite:///duetime.db.",
)


REQUEST = ("target_url", "method", "headers", "secret_headers", "body", "bearer", "basic", "signs")


def request_options(function: Function) -> Function:
    """Add the options of a request."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def request_from(
    *,
    target_url: str | None,
    method: str | None,
    headers: dict[str, str],
    secret_headers: dict[str, str],
    body: str | None,
    bearer: str | None,
    basic: tuple[str, str] | None,
    signs: tuple[str, ...],
) -> dict[str, Any] | None:
    """Return what these options say of a target, as in JSON; None if none of them is given."""
    given = {
        "--method": method,
        "--header": headers,
        "--secret-header": secret_headers,
        "--body": body,
        "--bearer": bearer,
        "--basic": basic,
        "--sign": signs,
    }
    if target_url is None:
        for option, value in given.items():
            if value:
                raise click.UsageError(f"{option} is about a request: give --url too")
        return None
    if target_url.partition(":")[0] in _STORES:
        raise click.UsageError("--url is what the handler calls here; name the store with --store or DUETIME_URL")
    if bearer is not None and basic is not None:
        raise click.UsageError("give --bearer or --basic, not both")
    twice = headers.keys() & secret_headers.keys()
    if twice:
        raise click.UsageError(f"the header {min(twice)} is given by --header and by --secret-header")
    found: dict[str, Any] = {"kind": "http", "url": target_url}
    if method is not None:
        found["method"] = method
    if headers or secret_headers:
        found["headers"] = {**headers, **{name: {"secret": secret} for name, secret in secret_headers.items()}}
    if body is not None:
        found["body"] = read_body(body)
    if bearer is not None:
        found["auth"] = {"type": "bearer", "token": {"secret": bearer}}
    if basic is not None:
        found["auth"] = {"type": "basic", "user": basic[0], "password": {"secret": basic[1]}}
    if signs:
        found["sign"] = [{"secret": each} for each in signs]
    return found


def read_body(text: str) -> Any:
    """Read a body: JSON, or plain text, which needs a Content-Type that is not JSON."""
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return text


def definition_of(values: dict[str, Any]) -> Definition:
    """Return the definition that these values stand for."""
    import msgspec

    from duetime.targets.stored.definitions import read_definition

    return read_definition(msgspec.json.encode(values))


def read_file(path: Path) -> Definition:
    """Return the definition in a JSON file; `-` is standard input."""
    from duetime.targets.stored.definitions import read_definition

    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise click.UsageError(f"{path} cannot be read: {error.strerror}") from None
    return read_definition(data)


def read_command(text: str) -> list[str]:
    """Divide a command into program and arguments as a shell would; nothing of it is carried out by one."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidValue(f"--command cannot be read: {error}") from None
