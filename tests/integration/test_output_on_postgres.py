"""What only the PostgreSQL store has: the pieces of output in a table of their own, which a prune may miss."""

from __future__ import annotations

import psycopg

from duetime.ids import new_id
from duetime.store.open import store_from_url
from duetime.store.output import OutputChunk, OutputPosition
from tests.conformance.build import add


async def test_pieces_that_came_while_their_task_was_pruned_are_found_and_removed(postgres_url: str) -> None:
    address, _, schema = postgres_url.partition("?schema=")
    store = store_from_url(postgres_url)
    await store.open()
    task, gone = await add(store), new_id()
    await store.keep_output([OutputChunk(task.id, 1, 0, "some text")])
    with psycopg.connect(address, autocommit=True) as connection:
        # as if `prune` had looked for pieces before these came, and for the row of their attempt afterwards
        connection.execute(
            f"insert into {schema}.output_chunk (task, attempt, start, size, text, words) values (%s, 1, 0, 4, 'text', '')".encode(), [gone]
        )
    [problem] = await store.inspect(repair=True)
    assert (problem.kind, problem.subject, problem.repaired) == ("orphaned logs", gone, True)
    assert await store.inspect(repair=False) == []
    assert [chunk.text for chunk in await store.output(task.id, None, OutputPosition(), 10)] == ["some text"]
    await store.close()
