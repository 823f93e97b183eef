"""Statements live in files: each is used, each that is used exists, and the hot ones never walk a table."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

import duetime
from duetime.clock import ManualClock
from duetime.model.task import State
from duetime.store.open import store_from_url
from duetime.store.postgres.statements import statements as postgres_statements
from duetime.store.sql import Migration, Statements, migrations
from duetime.store.sqlite import schema
from duetime.store.sqlite.read import _WALKS
from duetime.store.sqlite.statements import NEVER, SQL

SOURCES = Path(duetime.__file__).parent / "store" / "sqlite"
HOT = [
    "find_lane",
    "last_task",
    "seq_range",
    "submitted_next",
    "key_holders",
    "known_ids",
    "lower_lane",
    "worker_known",
    "lanes_with_work",
    "lanes_later",
    "scan_lane",
    "raise_lanes",
    "first_in_lanes",
    "claimed_tasks",
    "delete_due",
    "held_by_worker",
    "delete_running",
    "finish_task",
    "finish_succeeded",
    "insert_running",
    "first_in_lane",
    "next_in_lanes",
    "free_keys",
    "take_edges",
    "take_due",
    "take_held",
    "task_state",
    "mark_cancelling",
    "expired_tasks",
    "old_tasks",
    "attempts_of_worker",
    "schedule_versions",
    "put_schedule",
    "due_schedules",
    "next_schedule",
    "waiting_schedules",
    "wake_schedules",
    "schedules_by_name",
    "skips_of",
    "delete_skips",
    "duty_lease",
]


def used() -> set[str]:
    text = "\n".join(file.read_text() for file in SOURCES.glob("*.py"))
    named = set(re.findall(r"\bSQL\.([a-z_0-9]+)\b", text))
    return named | set(re.findall(r'_record\("([a-z_]+)"', text))


def test_every_statement_is_used() -> None:
    assert set(SQL.names()) - used() - {"names"} == set()


def test_every_statement_that_is_used_exists() -> None:
    assert used() - set(SQL.names()) - {"names"} == set()


def test_a_missing_statement_is_named() -> None:
    with pytest.raises(AttributeError, match="no_such_statement"):
        _ = SQL.no_such_statement


def test_a_statement_defined_twice_is_refused(tmp_path: Path) -> None:
    statements = object.__new__(Statements)
    statements._texts, statements._rewrite = {}, str
    with pytest.raises(ValueError, match="twice is defined twice"):
        statements._read("a.sql", "-- twice: first\nselect 1\n-- twice: second\nselect 2\n")


def test_no_line_of_a_statement_is_longer_than_a_screen() -> None:
    lines = [(file, line) for file in SOURCES.parent.rglob("*.sql") for line in file.read_text().splitlines()]
    assert len(lines) > 1_000
    assert [f"{file.name}: {line}" for file, line in lines if len(line) > 120] == []


def test_every_file_of_functions_begins_with_its_purpose() -> None:
    files = list((SOURCES.parent / "postgres" / "functions").glob("*.sql"))
    assert files
    assert [file.name for file in files if not re.match(r"-- [A-Z].+\.\n\n", file.read_text())] == []


def test_migrations_are_numbered_without_gaps() -> None:
    steps = migrations("duetime.store.sqlite")
    assert [step.version for step in steps] == list(range(1, len(steps) + 1))
    assert all(step.statements for step in steps)


def test_the_position_of_an_empty_lane_is_the_same_in_code_and_statements() -> None:
    assert all(str(NEVER) in getattr(SQL, name) for name in ("add_lane", "lanes_later", "raise_lanes"))


@pytest.fixture
def connection() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    schema.migrate(connection, now=0)
    return connection


@pytest.mark.parametrize("name", HOT)
def test_hot_statements_walk_no_table(connection: sqlite3.Connection, name: str) -> None:
    """Only the arguments (json_each) and tables that are small by nature may be scanned; never `task`, `due`, `held` or `running`."""
    text = getattr(SQL, name)
    values = dict.fromkeys(re.findall(r":([a-z_]+)", text), "[]") or ["[]"] * (
        max(map(int, re.findall(r"\?([0-9]+)", text)), default=0) or text.count("?")
    )
    plan = [row[3] for row in connection.execute(f"explain query plan {text}", values)]
    walks = [step for step in plan if step.startswith("SCAN") and "json_each" not in step and not _bounded(step)]
    connection.close()
    assert walks == [], plan


def _bounded(step: str) -> bool:
    return step.startswith(("SCAN pair", "SCAN CONSTANT ROW", "SCAN (subquery")) or "VIRTUAL TABLE" in step


@pytest.mark.parametrize("state", sorted(_WALKS))
def test_pages_of_live_states_follow_the_tables_of_live_tasks(connection: sqlite3.Connection, state: State) -> None:
    """Finished tasks may outnumber live ones by millions, so a page of a live state starts at its own table, and it stops after a page."""
    walk = _WALKS[state]
    text = f"explain query plan {SQL.record}\n{walk.source}\nwhere {walk.beyond}\n{walk.order}"
    plan = [row[3] for row in connection.execute(text, {"limit": 10, "seq": 10})]
    connection.close()
    assert not any(step.startswith("SCAN t") for step in plan), plan
    assert not any("TEMP B-TREE" in step for step in plan), plan


async def test_a_schema_is_made_once_and_then_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/duetime.db"
    for _ in range(2):
        store = store_from_url(url, clock=ManualClock())
        await store.open()
        await store.close()
    connection = sqlite3.connect(tmp_path / "duetime.db")
    assert connection.execute("select count(*) from duetime_version").fetchone() == (len(migrations("duetime.store.sqlite")),)
    connection.close()


def test_tables_of_the_first_version_are_brought_up_to_date(connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is only one version so far, so the next one is invented."""
    next_step = Migration(len(schema.STEPS) + 1, "next", "alter table duetime_calendar add column more text;\n")
    monkeypatch.setattr(schema, "STEPS", [*schema.STEPS, next_step])
    assert not schema.is_current(connection)
    schema.migrate(connection, now=0)
    assert schema.is_current(connection)
    connection.execute("select more from duetime_calendar")
    connection.close()


def test_every_statement_of_the_postgres_store_is_used_and_every_one_that_is_used_exists() -> None:
    sources = SOURCES.parent / "postgres"
    text = "\n".join(file.read_text() for file in sources.glob("*.py"))
    named = set(re.findall(r"(?<!store\.)(?:\b|_)sql\.([a-z_0-9]+)\b", text)) - {"names"}
    names = set(postgres_statements("duetime").names())
    quoted = set(re.findall(r'"([a-z_0-9]+)"', text))  # parts of pages are chosen by name
    assert names - named - quoted == set()
    assert named - names == set()


def test_every_invariant_is_cited_and_names_tests_that_exist() -> None:
    """What comments cite is in the design, and each invariant there names the test or removed guard that shows it."""
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "design" / "postgres.md").read_text()
    rows: dict[str, str] = dict(re.findall(r"^\| (I\d+) \|.*\| ([^|]+) \|$", page, re.MULTILINE))
    sources = SOURCES.parent / "postgres"
    texts = [file.read_text() for file in (*sources.rglob("*.sql"), *sources.glob("*.py"))]
    cited = {name for text in texts for name in re.findall(r"\bI\d+\b", text)}
    assert len(rows) >= 19
    assert set(rows) == cited
    tests = "\n".join(f"{file.stem}\n{file.read_text()}" for file in (root / "tests").rglob("test_*.py"))
    for name, shown in rows.items():
        named = re.findall(r"`(test_\w+)`", shown) + re.findall(r'"[^"]+"', shown)
        assert named, name
        assert [each for each in named if each not in tests] == [], name
