"""The `secrets` commands: values that targets send and sign with."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from duetime.cli import parsing, show
from duetime.cli.failures import REFUSED, print_error
from duetime.cli.session import Audited, json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.client.secrets import SecretInfo

COLUMNS = (
    show.Column("name", whole=True),
    show.Column("version", right=True),
    show.Column("key"),
    show.Column("readable"),
    show.Column("put", whole=True),
    show.Column("by", spare=1),
    show.Column("former until", spare=2),
)


@click.group(invoke_without_command=True)
@json_option
@store_option
@click.pass_context
def secrets(ctx: click.Context, as_json: bool) -> None:
    """List, put and delete secrets, and change their keys.

    A secret is a value that a target sends or signs with. It is stored sealed, and nothing shows it again. Without a command the
    secrets are listed, without their values.
    """
    if ctx.invoked_subcommand is None:
        _list(as_json)


@secrets.command("list")
@json_option
@store_option
def list_secrets(as_json: bool) -> None:
    """List the secrets, without their values."""
    _list(as_json)


def _list(as_json: bool) -> None:
    found = on_store(lambda app: app.secrets.list())
    if as_json:
        show.print_json_list(found)
    else:
        show.print_table(COLUMNS, map(_row, found), empty="there is no secret; `duetime secrets put` stores one")


def _row(secret: SecretInfo) -> tuple[object, ...]:
    readable = "yes" if secret.readable else "no: this key is missing here"
    return (
        *(secret.name, secret.version, secret.key, readable, show.absolute(secret.created_at), secret.created_by),
        None if secret.old_until_at is None else show.absolute(secret.old_until_at),
    )


@secrets.command()
@click.argument("name")
@click.option("--file", "path", metavar="PATH", type=click.Path(path_type=Path), help="Take the value from a file.")
@click.option("--from-env", "variable", metavar="NAME", help="Take the value from an environment variable.")
@click.option(
    "--grace",
    metavar=parsing.DURATION,
    callback=parsing.duration,
    default="1d",
    show_default=True,
    help="How long the former value stays good; 0 if it has leaked.",
)
@json_option
@store_option
def put(name: str, path: Path | None, variable: str | None, grace: float, as_json: bool) -> None:
    """Store a secret, or another value of it.

    The value is asked for, or read from standard input if that is no terminal, without the newline at its end. It is never an
    argument: other users of the machine can see those.
    """
    value = _value(name, path, variable)
    audited = Audited("secrets.put", name, detail=str)
    info = on_store(lambda app: app.secrets.put(name, value, grace=grace), audited=audited)
    if as_json:
        show.print_json(info)
    else:
        click.echo(show.printable(f"put {info.name}: {info}"))


def _value(name: str, path: Path | None, variable: str | None) -> str:
    if path is not None and variable is not None:
        raise click.UsageError("give --file or --from-env, not both")
    if variable is not None:
        if variable not in os.environ:
            raise click.UsageError(f"the environment variable {variable} is not set")
        return os.environ[variable]
    if path is None and sys.stdin.isatty():
        prompted: str = click.prompt(f"Value of {show.printable(name)}", hide_input=True, confirmation_prompt=True, err=True)
        return prompted
    try:
        text = (sys.stdin.buffer.read() if path is None else path.read_bytes()).decode()
    except OSError as error:
        raise click.UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise click.UsageError("the value must be text in UTF-8; write binary data in base64") from None
    return text.removesuffix("\n").removesuffix("\r")


@secrets.command()
@click.argument("name")
@store_option
def delete(name: str) -> None:
    """Remove a secret with all its versions.

    What uses it fails.
    """
    on_store(lambda app: app.secrets.delete(name), audited=Audited("secrets.delete", name))
    click.echo(show.printable(f"deleted {name}"))


@secrets.command()
@json_option
@store_option
def rotate(as_json: bool) -> None:
    """Seal all secrets anew with the first key.

    Then the other keys of DUETIME_SECRET_KEYS can be taken out. The exit code is 1 if no key opens some of the secrets.
    """
    done = on_store(lambda app: app.secrets.rotate(), audited=Audited("secrets.rotate", "all secrets", detail=str))
    if as_json:
        show.print_json(done)
    else:
        click.echo(show.printable(f"{show.count(done.rotated, 'version')} sealed anew with the key {done.key}"))
    if done.unreadable:
        names = ", ".join(map(show.printable, done.unreadable))
        print_error(f"no key here opens {names}: add their key to DUETIME_SECRET_KEYS, or put them again")
        raise click.exceptions.Exit(REFUSED)


@secrets.command("new-key")
@click.argument("id", required=False)
def make_key(id: str | None) -> None:
    """Print a fresh key.

    Set DUETIME_SECRET_KEYS to it, for all workers and servers; during a change of keys the new one stands first, then a space, then the
    old ones. ID is how it is called, by default today's date.
    """
    from duetime.clock import SystemClock, to_datetime
    from duetime.model.secrets import read_keys, write_key
    from duetime.secrets.keys import new_key

    text = write_key(new_key(f"{to_datetime(SystemClock().now()):%Y-%m-%d}" if id is None else id))
    read_keys(text, "ID")
    click.echo(text)
    show.note("Keep it safe and apart from the store: without it no secret can be read, and it cannot be shown again.")
