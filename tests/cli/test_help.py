"""The command line as a whole: quick help, documented commands."""

import re
import subprocess
import sys

import click
import pytest

from duetime.cli.failures import EXIT_CODES
from duetime.cli.main import cli
from tests.cli.conftest import ROOT, CommandLine

HEAVY = {
    "aiohttp",
    "asyncpg",
    "duetime.cli.bench",
    "duetime.cli.demo",
    "duetime.cli.hosting.host",
    "duetime.store.sqlite",
    "duetime.worker",
}
HEAVY |= {"redis", "rich", "sqlite3", "starlette", "uvicorn", "uvloop"}

DOCUMENTATION = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def commands(group: click.Group, before: str = "") -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        found[f"{before}{name}"] = command
        if isinstance(command, click.Group):
            found |= commands(command, f"{before}{name} ")
    return found


COMMANDS = commands(cli)


def section(command: str) -> str:
    """Return what the documentation says under the command's heading."""
    found = re.search(rf"^#+ `duetime {command}`\n(.*?)(?=^#|\Z)", DOCUMENTATION, re.MULTILINE | re.DOTALL)
    assert found, f"docs/cli.md has no heading `duetime {command}`"
    return found[1]


def test_help_is_shown_without_importing_anything_heavy() -> None:
    script = "import sys\nfrom duetime.cli.main import cli\ntry: cli.main(['--help'])\nexcept SystemExit: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    help_text, _, modules = done.stdout.rstrip().rpartition("\n")
    assert "Commands:" in help_text
    imported = set(modules.split())
    assert "duetime.cli.main" in imported
    assert not imported & HEAVY


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(duetime: CommandLine, command: str) -> None:
    assert duetime(*command.split(), "--help").stdout.startswith(f"Usage: duetime {command}")
    assert COMMANDS[command].get_short_help_str(200), "say in its docstring what it does"


def test_the_list_of_commands_is_not_cut(duetime: CommandLine) -> None:
    assert "..." not in duetime("--help").stdout.partition("Commands:")[2]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_documented_with_all_its_options(command: str) -> None:
    text = section(command)
    if "the filters" in text or "with filters" in text:
        text += DOCUMENTATION.partition("### Filters")[2].partition("##")[0]
    everywhere = {"--json", "--url", "--help", "--tz"}
    for parameter in COMMANDS[command].params:
        if isinstance(parameter, click.Option):
            name = max(parameter.opts, key=len)
            assert name in everywhere or f"`{name}" in text, f"docs/cli.md does not name {name} of {command}"


def test_no_command_is_documented_that_does_not_exist() -> None:
    assert set(re.findall(r"^#+ `duetime ([^`]+)`$", DOCUMENTATION, re.MULTILINE)) == set(COMMANDS)


def test_the_documented_exit_codes_are_those_of_the_table() -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", DOCUMENTATION, re.MULTILINE)}
    assert documented == {0, *(code for _, code in EXIT_CODES)}


def test_the_version_is_shown(duetime: CommandLine) -> None:
    assert re.fullmatch(r"duetime \d+\.\d+\.\d+\n", duetime("--version").stdout)


def test_without_a_command_the_help_is_shown(duetime: CommandLine) -> None:
    alone = duetime()
    assert alone.stderr == ""
    assert alone.stdout == duetime("--help").stdout
    assert "\n  worker " in alone.stdout
