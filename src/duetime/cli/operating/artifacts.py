"""The `artifacts` commands: uploaded programs that commands run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from duetime.cli import show
from duetime.cli.session import Audited, json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.client.artifacts import ArtifactInfo

COLUMNS = (
    show.Column("artifact", whole=True),
    show.Column("versions", right=True, spare=1),
    show.Column("size", right=True),
    show.Column("kind", spare=3),
    show.Column("run"),
    show.Column("put", whole=True),
    show.Column("by", spare=2),
    show.Column("note", spare=4),
)


@click.group(invoke_without_command=True)
@json_option
@store_option
@click.pass_context
def artifacts(ctx: click.Context, as_json: bool) -> None:
    """List, put, restore and delete artifacts.

    An artifact is an uploaded program, in versions that never change. Commands name it, and workers fetch and run it. Without a
    command the newest version of each is listed.
    """
    if ctx.invoked_subcommand is None:
        _list(None, as_json)


@artifacts.command("list")
@json_option
@store_option
def list_artifacts(as_json: bool) -> None:
    """List the newest version of each artifact."""
    _list(None, as_json)


@artifacts.command("show")
@click.argument("name")
@json_option
@store_option
def show_artifact(name: str, as_json: bool) -> None:
    """List the versions of an artifact, or one of them.

    NAME is monthly, or monthly@3.
    """
    if "@" not in name:
        _list(name, as_json)
        return
    found = on_store(lambda app: app.artifacts.get(name))
    if as_json:
        show.print_json(found)
    else:
        show.print_facts(
            {
                "artifact": f"{found.name}@{found.version}",
                "SHA-256": found.sha256,
                "size": f"{found.size:,} bytes",
                "kind": found.kind,
                "file": found.file,
                "run": _run(found),
                "put": f"{show.absolute(found.made_at)} by {found.made_by}",
                "note": found.note or None,
            }.items()
        )


def _list(name: str | None, as_json: bool) -> None:
    found = on_store(lambda app: app.artifacts.list(name))
    if as_json:
        show.print_json_list(found)
    else:
        show.print_table(COLUMNS, map(_row, found), empty="there is no artifact; `duetime artifacts put` stores one")


def _row(artifact: ArtifactInfo) -> tuple[object, ...]:
    return (
        *(f"{artifact.name}@{artifact.version}", artifact.versions, f"{artifact.size:,}", artifact.kind, _run(artifact)),
        *(show.absolute(artifact.made_at), artifact.made_by, artifact.note or None),
    )


def _run(artifact: ArtifactInfo) -> str | None:
    import shlex

    return shlex.join(artifact.run) or None


@artifacts.command()
@click.argument("name")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--run", metavar="LINE", default="", help="What to run: the program and its arguments, such as 'python main.py'.")
@click.option("--note", metavar="TEXT", default="", help="What is new in it.")
@click.option("--no-unpack", is_flag=True, help="Keep an archive as it is, such as a .jar.")
@json_option
@store_option
def put(name: str, file: Path, run: str, note: str, no_unpack: bool, as_json: bool) -> None:
    """Upload a file as the next version of an artifact.

    FILE is a program, or an archive (.tar, .tar.gz, .zip) that is unpacked where it runs. What is the newest version already is not
    stored again.
    """
    audited = Audited("artifacts.put", name, detail=str)
    info = on_store(lambda app: app.artifacts.put(name, file, run=run, note=note, unpack=not no_unpack), audited=audited, creates=True)
    _tell("put", info, as_json)


@artifacts.command()
@click.argument("version")
@json_option
@store_option
def restore(version: str, as_json: bool) -> None:
    """Make an earlier version the newest one again.

    VERSION is such as monthly@2. It gets a new number, and commands that follow the newest version run it.
    """
    info = on_store(lambda app: app.artifacts.restore(version), audited=Audited("artifacts.restore", version, detail=str))
    _tell(f"restored {version} as", info, as_json)


@artifacts.command()
@click.argument("version")
@click.option("--force", is_flag=True, help="Also one that stored handlers need.")
@json_option
@store_option
def delete(version: str, force: bool, as_json: bool) -> None:
    """Remove a version.

    VERSION is such as monthly@2. Its number is not used again. One that stored handlers need is refused. Handlers that are declared by code
    and name it are not known, and their tasks fail.
    """
    info = on_store(lambda app: app.artifacts.delete(version, force=force), audited=Audited("artifacts.delete", version, detail=str))
    _tell("deleted", info, as_json)


def _tell(what: str, info: ArtifactInfo, as_json: bool) -> None:
    if as_json:
        show.print_json(info)
    else:
        click.echo(show.printable(f"{what} {info}"))
