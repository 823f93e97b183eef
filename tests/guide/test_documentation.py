"""The documentation is true: its examples run, its commands exist, its links lead somewhere, its tables are complete.

Conventions of the pages; the comments are HTML, which readers do not see:

* Python blocks of a page run one after the other in one program, in an empty folder.
* A block that begins with `# shop.py` is that file in the folder instead. Test files are run by tests/guide/test_testing_kit.py.
* `<!-- prints -->` before a text block: it is what the Python block before it prints.
* `<!-- skip: reason -->` before a block leaves it out.
* A page whose blocks speak of `DATABASE_URL` finds the address of an empty PostgreSQL database there.
"""

import importlib
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import click
import pytest

import duetime
from duetime import errors
from duetime.cli.main import cli
from duetime.config import SETTINGS
from duetime.model.health import FindingKind
from tests.servers.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])
SHELLS = ("sh", "bash", "shell", "console")

_FENCE = re.compile(
    r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[\w+-]*)[^\n]*\n(?P<body>.*?)^(?P=indent)(?P=ticks) *$", re.MULTILINE | re.DOTALL
)
_FILE = re.compile(r"# (?P<name>\w+\.py)\n")
_COMMENT = re.compile(r"<!--\s*(?P<word>prints|skip)\b:?\s*(?P<text>(?:(?!-->).)*?)\s*-->\s*\Z", re.DOTALL)
_LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<target>[^()\s]+)\)")
_INLINE = re.compile(r"(?<!`)`(?!`)(?P<code>[^`\n]+)`(?!`)")

# Runs in a process of its own: blocks share one namespace, and each one's output goes to a file of its number.
_RUNNER = """
import contextlib, json, pathlib, sys
blocks = json.loads(pathlib.Path("blocks.json").read_text(encoding="utf-8"))
namespace = sys.modules["__main__"].__dict__
for number, (page, line, source) in enumerate(blocks):
    code = compile("\\n" * line + source, page, "exec")
    with open(f"printed.{number}", "w", encoding="utf-8") as printed, contextlib.redirect_stdout(printed):
        exec(code, namespace)
"""


class Block(NamedTuple):
    """A fenced block: where its body begins (lines before it), which file it is, and what the comment above it says."""

    line: int
    language: str
    body: str
    file: str
    word: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    source = page.read_text(encoding="utf-8")
    found = []
    for fence in _FENCE.finditer(source):
        comment = _COMMENT.search(source[: fence.start()])
        indent = len(fence["indent"])
        body = "".join(line[indent:] for line in fence["body"].splitlines(keepends=True))
        word, text = (comment["word"], comment["text"]) if comment else ("", "")
        file = _FILE.match(body) if fence["language"] == "python" else None
        found.append(Block(source[: fence.start("body")].count("\n"), fence["language"], body, file["name"] if file else "", word, text))
    return found


def prose_of(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


pages = pytest.mark.parametrize("page", PAGES, ids=name_of)


# ---- examples ----


@pytest.mark.slow
@pages
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    programs: list[Block] = []
    printed: dict[int, str] = {}
    for block in blocks_of(page):
        if block.word == "skip":
            assert block.text, f"{name_of(page)}, line {block.line}: a block is skipped without a reason"
        elif block.word == "prints":
            assert programs, f"{name_of(page)}, line {block.line}: there is no Python block before this output"
            printed[len(programs) - 1] = block.body
        elif block.file:
            (tmp_path / block.file).write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            programs.append(block)
    if not programs:
        return
    needs_server = any("DATABASE_URL" in block.body for block in programs)
    run_program(page, programs, tmp_path, {"DATABASE_URL": request.getfixturevalue("postgres_database")} if needs_server else {})
    for number, expected in printed.items():
        assert (tmp_path / f"printed.{number}").read_text(encoding="utf-8") == expected, f"what line {programs[number].line} prints"


def run_program(page: Path, programs: list[Block], folder: Path, servers: Mapping[str, str]) -> None:
    blocks = [(name_of(page), block.line, block.body) for block in programs]
    (folder / "blocks.json").write_text(json.dumps(blocks), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
    environment |= {"PYTHONPATH": str(folder), "DUETIME_USER": "anna@shop", **servers}
    command = [sys.executable, "-W", "error", "-c", _RUNNER]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert run.returncode == 0, f"an example of {name_of(page)} failed:\n{run.stderr}"


@pytest.mark.slow
def test_the_examples_are_typed_as_they_say(tmp_path: Path) -> None:
    """What readers copy passes a strict type checker; a name that a later block of its page uses again is not its business."""
    settings = [
        "--strict",
        "--disable-error-code=no-redef",
        "--disable-error-code=import-untyped",  # asyncpg says nothing of its types
        "--python-version=3.11",
        f"--cache-dir={ROOT / '.mypy_cache' / 'documentation'}",
    ]
    together: dict[str, str] = {}  # programs that need no files of their page: one run of the type checker is enough for them
    folders: list[Path] = []
    for number, page in enumerate(PAGES):
        program, files = "", dict[str, str]()
        for block in blocks_of(page):
            if block.language == "python" and block.word != "skip" and not block.file:
                program += "\n" * (block.line - program.count("\n")) + block.body  # at its own line, for the messages
            elif block.file and not block.file.startswith("test_"):
                files[block.file] = block.body
        name = f"page_{number}_{re.sub(r'[^a-z]', '_', name_of(page).lower())}.py"
        if program and files:
            folders.append(_written(tmp_path / str(number), {**files, name: program}))
        elif program:
            together[name] = program
    folders.append(_written(tmp_path / "together", together))
    complaints = []
    for folder in folders:
        pages = sorted(path.name for path in folder.glob("page_*.py"))
        run = subprocess.run([sys.executable, "-m", "mypy", *settings, *pages], cwd=folder, capture_output=True, text=True, check=False)
        complaints += [line for line in run.stdout.splitlines() if ": error:" in line] + [run.stderr]
    assert not list(filter(None, complaints))


def _written(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


# ---- commands ----


def shell_lines(page: Path) -> Iterator[str]:
    """Yield what a page tells people to type: lines of shell blocks, and `duetime …` or `make …` in the text."""
    for block in blocks_of(page):
        if block.language in SHELLS and block.word != "skip":
            for line in block.body.replace("\\\n", " ").splitlines():
                if not line.startswith("#"):
                    yield line.removeprefix("$ ")
    for found in _INLINE.finditer(prose_of(page)):
        if found["code"].startswith(("duetime ", "make ")):
            yield found["code"]


def commands_in(line: str, program: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of a program in a line, with placeholders such as [APP] or … as they are."""
    words = shlex.split(line, comments=True)
    while program in words:
        words = words[words.index(program) + 1 :]
        end = next((index for index, word in enumerate(words) if word in ("|", "&&", ";", ">", program)), len(words))
        yield words[:end]


def wrong_in(arguments: list[str]) -> str | None:
    """Return what is wrong with a call of `duetime`: a command or an option that does not exist, or an option that it needs."""
    command: click.Command = cli
    given: set[str] = set()
    for word in arguments:
        if isinstance(command, click.Group) and re.fullmatch(r"[a-z][a-z-]*", word):
            found = command.commands.get(word)
            if found is None:
                return f"there is no command {word!r}"
            command = found
        elif word.startswith("-") and command.name not in ("demo", "bench"):  # these read their arguments themselves
            options = {name for parameter in command.params for name in parameter.opts} | {"--help", "-h"}
            if word.partition("=")[0] not in options:
                return f"`{command.name}` has no option {word}"
            given.add(word.partition("=")[0])
        else:
            given.add(word)
    if given:  # a page that only names a command gives nothing
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.required and not given.intersection(parameter.opts):
                return f"`{command.name}` needs {parameter.opts[0]}"
    return None


@pages
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    wrong = []
    for line in shell_lines(page):
        for arguments in commands_in(line, "duetime"):
            problem = wrong_in(arguments)
            if problem:
                wrong.append(f"{line}: {problem}")
        for arguments in commands_in(line, "make"):
            wrong.extend(f"{line}: no target {word!r}" for word in arguments if re.fullmatch(r"[a-z-]+", word) and word not in targets)
    assert not wrong


@pages
def test_what_a_page_installs_can_be_installed(page: Path) -> None:
    """There is no release yet: who has nothing of Duetime installs it from the folder."""
    blocks = [block.body for block in blocks_of(page) if block.language in SHELLS]
    assert [line for body in blocks for line in body.splitlines() if re.search(r"pip install .*\bduetime\b", line)] == []


def test_the_check_of_commands_finds_what_does_not_exist() -> None:
    assert list(commands_in("DUETIME_URL=x duetime tasks --state failed | head # all", "duetime")) == [["tasks", "--state", "failed"]]
    assert wrong_in(["tasks", "--state", "failed"]) is None
    assert wrong_in(["gates", "pause", "sync_stock", "--for", "10m"]) is None
    assert wrong_in(["tusks"]) == "there is no command 'tusks'"
    assert wrong_in(["gates", "pause", "sync_stock", "--during", "10m"]) == "`pause` has no option --during"
    assert wrong_in(["schedules", "import", "crontab.txt"]) == "`import` needs --handler"
    assert wrong_in(["schedules", "import"]) is None, "its name alone"


# ---- links ----


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, made as GitHub makes them."""
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", prose_of(page), re.MULTILINE):
        text = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while (anchor := f"{text}-{number}" if number else text) in anchors:
            number += 1
        anchors.add(anchor)
    return anchors


@pages
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    wrong = []
    for link in _LINK.finditer(prose_of(page)):
        path, _, anchor = link["target"].partition("#")
        if re.match(r"[a-z]+:", link["target"]):
            continue
        target = page if not path else (page.parent / path).resolve()
        if not target.exists():
            wrong.append(f"{link['target']}: there is no such file")
        elif anchor and anchor not in anchors_of(target):
            wrong.append(f"{link['target']}: there is no such heading")
    assert not wrong


def test_the_walk_of_one_task_names_files_that_exist() -> None:
    walk = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## The walk of one task")[2].partition("\n## ")[0]
    named = re.findall(r"`([\w/]+/\w+\.(?:py|sql))`", walk)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / "src" / "duetime" / name).exists()] == []


def test_the_table_of_attacks_names_each_attack_once_and_tests_that_exist() -> None:
    rows = [row for row in rows_of(DOCS / "design" / "attacks.md") if len(row) == 5][2:]
    assert len(rows) > 50
    assert [row[1] for row in rows if sum(row[1] == other[1] for other in rows) > 1] == []
    named = {name for row in rows for name in re.findall(r"test_\w+\.py", row[4])}
    assert [row[1] for row in rows if "test_" not in row[4]] == []
    assert named <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert {path.name for path in (ROOT / "tests" / "attacks").glob("test_*.py")} <= named


def test_every_page_is_linked_from_the_index() -> None:
    index = DOCS / "index.md"
    linked = {(DOCS / link["target"].partition("#")[0]).resolve() for link in _LINK.finditer(prose_of(index))}
    assert {name_of(page) for page in DOCS.rglob("*.md")} - {name_of(index)} <= {
        name_of(page) for page in linked if page.is_relative_to(ROOT)
    }


def test_the_readme_leads_to_the_index_and_begins_with_what_matters() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    screen = "\n".join(readme.splitlines()[:45])
    assert "docs/index.md" in readme
    assert all(text in screen for text in ("make demo", "make test", "pip install", "```python"))


def test_pages_for_users_say_metrics_and_maintenance() -> None:
    """Inside they are figures and duties; people who use it need not know these words."""
    users = [page for page in PAGES if page.parent == DOCS and page.name != "coverage.md"] + [ROOT / "README.md"]
    found = [(name_of(page), word) for page in users for word in re.findall(r"(?i)\b(?:figures?|duty|duties)\b", prose_of(page))]
    assert found == []


def test_what_health_finds_is_listed_and_named_in_the_words_of_users() -> None:
    listed = {kind for row in rows_of(DOCS / "operating.md") for kind in row[0].split(", ")}
    assert {kind.value for kind in FindingKind} - listed == set()
    assert not any(re.search("dut(y|ies)|figure", kind.value) for kind in FindingKind)


# ---- tables ----


def rows_of(page: Path) -> list[list[str]]:
    """Return the cells of all table rows of a page."""
    lines = [line.strip() for line in prose_of(page).splitlines() if line.strip().startswith("|")]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]


def shown(default: object) -> str:
    """Write a default as the page does."""
    if default is None:
        return "–"
    if callable(default):
        return "`user@host`"
    if isinstance(default, timedelta):
        days, rest = divmod(int(default.total_seconds()), 86_400)
        return f"`{days}d`" if days and not rest else f"`{rest}s`"
    if isinstance(default, bool):
        return "`on`" if default else "`off`"
    return f"`{default}`"


def test_the_page_of_settings_prints_the_table_of_the_code() -> None:
    rows = rows_of(DOCS / "configuration.md")
    documented = [row for row in rows if row[1].startswith("`DUETIME_")]
    expected = [[f"`{setting.name}`", f"`{setting.variable}`", shown(setting.default), setting.meaning] for setting in SETTINGS]
    assert documented == expected


def test_the_page_of_errors_lists_every_error() -> None:
    listed = {row[0].strip("`") for row in rows_of(DOCS / "errors.md")}
    everything = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert everything <= listed
    assert {
        name for name in duetime.__all__ if isinstance(getattr(duetime, name), type) and issubclass(getattr(duetime, name), Exception)
    } <= listed


# Errors that nobody outside of Duetime gets to see, with what becomes of them.
INTERNAL = {
    "Refusal": "a problem document",
    "LeaseOver": "a problem document",
    "FieldError": "a problem document, or the InvalidValue that it is",
    "GateNotFound": "`gates.open` returns False",
    "TooManyCollections": "the InvalidValue that it is",
    "UnfitPayload": "the InvalidPayload that it is",
    **dict.fromkeys(("Gone", "Refused", "NoAnswer"), "the StoreUnavailable that it is"),
}


def test_the_page_of_errors_lists_the_errors_of_every_module() -> None:
    for module in pkgutil.walk_packages(duetime.__path__, "duetime."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

    def below(kind: type[Exception]) -> set[type[Exception]]:
        return {kind}.union(*(below(each) for each in kind.__subclasses__()))

    raised = {kind.__name__ for kind in below(errors.DuetimeError) if kind.__module__.startswith("duetime.")}
    assert raised >= INTERNAL.keys()
    assert raised - INTERNAL.keys() <= {row[0].strip("`") for row in rows_of(DOCS / "errors.md")}


def test_the_states_and_moves_are_those_of_the_code() -> None:
    from duetime.model.lifecycle import MOVES

    moves = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[2])) for row in rows_of(DOCS / "concepts.md") if len(row) == 3}
    assert {state: {str(each) for each in after} for state, after in MOVES.items()} == {state: moves[str(state)] for state in MOVES}
