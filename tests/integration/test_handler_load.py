"""Counting one handler's tasks must not cost by what others have."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg

from duetime.store.open import store_from_url
from duetime.store.postgres.statements import statements
from duetime.store.sqlite import schema
from duetime.store.sqlite.statements import SQL
from tests.conformance.build import new_task

OTHERS = 3_000


def test_on_sqlite_only_the_lanes_of_the_handler_are_searched() -> None:
    connection = sqlite3.connect(":memory:")
    schema.migrate(connection, now=0)
    values = {"names": '["work"]', "now": 0, "limit": 1_001}
    plan = [row[3] for row in connection.execute(f"explain query plan {SQL.handler_load}", values)]
    connection.close()
    walked = [step for step in plan if step.startswith("SCAN")]
    assert {step.split()[1] for step in walked} <= {"json_each", "l", "own", "waiting"}, plan  # the names, and what was found
    [due] = [step for step in plan if step.split()[1] == "d"]
    assert due.startswith("SEARCH d USING PRIMARY KEY (lane=? AND pos<?)"), plan


async def test_on_postgres_no_due_entry_of_another_handler_is_read(postgres_url: str) -> None:
    store = store_from_url(postgres_url)
    await store.open()
    await store.add([new_task("other") for _ in range(OTHERS)])
    await store.add([new_task("work") for _ in range(3)])
    name = postgres_url.partition("schema=")[2]
    with psycopg.connect(postgres_url.partition("?")[0], autocommit=True) as admin:
        admin.execute("set enable_seqscan = off")  # the table is small here
        text = statements(name).handler_load.replace("$1", "null").replace("$2", "'work'").replace("$3", "1001")
        row = admin.execute(f"explain (analyze, format json) {text}".encode()).fetchone()
    await store.close()
    assert row is not None
    [plan] = row[0] if isinstance(row[0], list) else json.loads(row[0])
    looks = [part for part in parts(plan["Plan"]) if part.get("Relation Name") == "due"]
    assert looks
    for look in looks:
        assert "lane = " in look["Index Cond"], look
        assert look["Actual Rows"] * look["Actual Loops"] + look.get("Rows Removed by Filter", 0) <= 3, look


def parts(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from parts(part)
