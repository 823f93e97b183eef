"""Names say what they mean: words that had come to mean too much are refused in identifiers and file names.

Text is not looked at: prose is for people to judge.
"""

from __future__ import annotations

import io
import keyword
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

REFUSED = {  # what to say instead
    "wish": "new task, submission",
    "wishes": "new tasks, submission",
    "room": "queue, free slots, capacity",
    "rooms": "queues, free slots, capacity",
    "news": "updates, changed",
    "ear": "claim wait",
    "guest": "pull worker",
    "guests": "pull workers",
    "place": "index, position, entry, location, store, folder, address: what it is there",
    "places": "indexes, positions, entries, locations, stores: what they are there",
    "turn": "run_once, lease, round, burst: what it is there",
    "turns": "rounds, leases, bursts: what they are there",
    "sift": "filter, choose",
    "ripe": "due",
    "beaten": "lost a race",
}
ALLOWED = {  # identifiers, with the reason
    "place_order": "what customers of the examples' shop do",
    "place_orders": "what customers of the examples' shop do",
}
FOLDERS = ["bench", "src/duetime", "tests", "tools"]

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def words(identifier: str) -> list[str]:
    """Split an identifier in snake case or camel case into its words."""
    return [word.lower() for word in _WORDS.findall(identifier)]


def identifiers(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the identifiers of a Python or SQL file with their lines, and those in its name as of line 0."""
    yield 0, path.stem
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                yield token.start[0], token.string
    else:
        for number, line in enumerate(text.splitlines(), 1):
            for name in re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'|--.*", "", line)):
                yield number, name


def refused(path: Path) -> Iterator[str]:
    for line, identifier in identifiers(path):
        if identifier.strip("_") not in ALLOWED:
            for word in words(identifier):
                if word in REFUSED:
                    yield f"{path.relative_to(ROOT)}:{line}: {identifier} (instead of {word}: {REFUSED[word]})"


def files(folder: str) -> list[Path]:
    path = ROOT / folder
    return [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.suffix in (".py", ".sql"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_name_has_a_refused_word(folder: str) -> None:
    assert files(folder), f"{folder} is not there any more; correct FOLDERS"
    found = [problem for path in files(folder) for problem in refused(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("identifier", "parts"),
    [
        ("in_place", ["in", "place"]),
        ("replace", ["replace"]),
        ("_DutyTurn", ["duty", "turn"]),
        ("HTTPServerPlace", ["http", "server", "place"]),
        ("FAIR_PLACE", ["fair", "place"]),
        ("returned", ["returned"]),
        ("heard_at", ["heard", "at"]),
        ("Room2", ["room"]),
    ],
)
def test_identifiers_are_split_into_whole_words(identifier: str, parts: list[str]) -> None:
    assert words(identifier) == parts


def test_a_refused_word_is_found_in_code_and_not_in_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    path = tmp_path / "guests.py"
    path.write_text('"""A place in text."""\n\nclass WaitingRoom:\n    def place_order(self) -> None: ...  # in turn\n')
    assert [problem.partition(" (")[0] for problem in refused(path)] == ["guests.py:0: guests", "guests.py:3: WaitingRoom"]
    statement = tmp_path / "due.sql"
    statement.write_text("-- the place\nselect d.place, 'turn' from due as d\n")
    assert [problem.partition(" (")[0] for problem in refused(statement)] == ["due.sql:2: place"]
