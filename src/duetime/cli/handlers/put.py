"""`handlers put`: store how a handler's attempts are performed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duetime.cli import parsing, show
from duetime.cli.handlers.options import (
    BROKERS,
    REQUEST,
    definition_of,
    read_command,
    read_file,
    request_from,
    request_options,
    store_option,
)
from duetime.cli.session import Audited, json_option, on_store

if TYPE_CHECKING:
    from duetime.client.targets import TargetInfo
    from duetime.targets.stored.definitions import Definition


@click.command()
@click.argument("name")
@request_options
@click.option("--to", metavar="SUBJECT", help=f"Publish there: --url is then a broker, {', '.join(f'{each}://' for each in BROKERS)}.")
@click.option("--command", metavar="TEXT", help="Run a program: its arguments are divided as a shell does, but no shell runs.")
@click.option("--artifact", metavar="NAME[@VERSION]", help="Run an uploaded program: its newest version, or always this one.")
@click.option("--env", metavar="NAME=VALUE", multiple=True, callback=parsing.text_map, help="A variable of the command; may be repeated.")
@click.option(
    "--secret-env",
    metavar="NAME=SECRET",
    multiple=True,
    callback=parsing.text_map,
    help="A variable of the command whose value is a stored secret; may be repeated.",
)
@click.option("--file", "path", metavar="PATH|-", type=click.Path(path_type=Path), help="The whole definition, as JSON.")
@click.option("--timeout", metavar=parsing.DURATION, callback=parsing.duration, help="How long an attempt may run.")
@click.option("--tries", type=click.IntRange(min=1), metavar="N", help="How often a task is tried, the first time included.")
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="Slots in each worker process.")
@click.option("--priority", type=click.IntRange(0, 9), metavar="0-9", help="Of its tasks, unless they say theirs; 9 first.")
@click.option("--redirects", type=click.Choice(["none", "same-host", "any"]), help="Which redirects are followed.")
@click.option("--fatal", type=int, multiple=True, metavar="STATUS", help="A status that is not tried again; may be repeated.")
@click.option(
    "--callback-within", metavar=parsing.DURATION, callback=parsing.duration, help="The server may answer 202 and report within this."
)
@click.option("--certificate", metavar="SECRET", help="Show the client certificate in this stored secret, with its key.")
@click.option(
    "--disable-after", type=click.IntRange(min=1), metavar="N", help="So many failures in a row over ten minutes close a gate before it."
)
@click.option("--note", "doc", metavar="TEXT", help="What the handler is for.")
@click.option("--if-exists", type=click.Choice(["replace", "error"]), default="replace", show_default=True, help="If one is stored.")
@json_option
@store_option
def put(name: str, path: Path | None, if_exists: str, as_json: bool, **options: Any) -> None:
    """Store how the attempts of a handler are performed.

    They are requests (--url), messages to a broker (--url and --to) or programs (--command; --artifact for an uploaded one); --file takes
    a definition with all that can be said. Workers that run with --targets serve it within a second, without a restart, and commands only
    those with --allow command.

    Secrets are named and never written here: `duetime secrets put` stores them.
    """
    if path is not None and any(value not in (None, (), {}) for value in options.values()):
        raise click.UsageError("--file has the whole definition; leave the other options out, or write them into it")
    target = read_file(path) if path is not None else _from_options(options)
    seen = 0 if if_exists == "error" else None
    audited = Audited("handlers.put", name, detail=lambda info: f"{info.kind}, version {info.version}")
    info: TargetInfo = on_store(lambda app: app.targets.put(name, target, seen=seen), creates=True, audited=audited)
    if as_json:
        show.print_json(info)
    else:
        from duetime.targets.stored.specs import summary_of

        click.echo(show.printable(f"put {info.name}: {summary_of(target)}"))


def _from_options(options: dict[str, Any]) -> Definition:
    to = options["to"]
    request, program = request_from(**{name: options[name] for name in REQUEST}), _program_from(options)
    if request is not None and program is not None:
        raise click.UsageError("--url is a request, --command and --artifact run a program: not both")
    if request is not None:
        if options["env"] or options["secret_env"]:
            raise click.UsageError("--env and --secret-env are variables of a program: give --command")
        found = request if to is None else {**request, "kind": "publish", "to": to}
    elif program is not None:
        found = program
    else:
        raise click.UsageError("give --url, or --command, or --artifact")
    if options["tries"] is not None:
        found["retry"] = {"tries": options["tries"]}
    if options["callback_within"] is not None:
        found["callback"] = {"within": options["callback_within"]}
    if options["certificate"] is not None:
        found["certificate"] = {"secret": options["certificate"]}
    if options["fatal"]:
        found["fatal"] = list(options["fatal"])
    plain = ("timeout", "concurrency", "priority", "redirects", "disable_after", "doc")
    found |= {name: options[name] for name in plain if options[name] is not None}
    return definition_of(found)


def _program_from(options: dict[str, Any]) -> dict[str, Any] | None:
    """Return the command that the options define; None if they define none."""
    command, artifact = options["command"], options["artifact"]
    if command is None and artifact is None:
        return None
    env = {**options["env"], **{name: {"secret": secret} for name, secret in options["secret_env"].items()}}
    given = {"argv": None if command is None else read_command(command), "artifact": artifact, "env": env or None}
    return {"kind": "command", **{name: value for name, value in given.items() if value is not None}}
