"""Functions are code: made again when the program's differ, under running programs, and good for the program before them."""

from __future__ import annotations

import asyncio
import re

import pytest

from duetime import App
from duetime.errors import StoreUnavailable
from duetime.model.task import State
from duetime.store.open import store_from_url
from duetime.store.postgres.statements import FUNCTIONS, functions_digest, statements
from duetime.store.values import NewWorker
from tests.conformance.build import Worker, add, state_of, wait_until
from tests.integration.postgres import admin, opened, schema_of
from tools.signatures import recorded, signatures


@pytest.fixture
def postgres_url(bare_postgres_url: str) -> str:
    """These tests make the tables themselves, or change more than rows."""
    return bare_postgres_url


def stored(url: str) -> tuple[object, ...]:
    with admin(url) as connection:
        found = connection.execute(f"select version, digest from {schema_of(url)}.functions".encode()).fetchone()
    assert found is not None
    return found


def pretend(url: str, version: int, digest: str = "other") -> None:
    """Record another version or digest of the functions than the schema has."""
    with admin(url) as connection:
        connection.execute(f"update {schema_of(url)}.functions set version = %s, digest = %s".encode(), (version, digest))


async def one_task_lives_and_ends(url: str) -> None:
    store = await opened(url)
    try:
        worker = Worker(store, "w", await store.register(NewWorker(id="w", host="here", pid=1, slots={"work": 10})))
        task = await add(store)
        await worker.run(State.SUCCEEDED)
        assert await state_of(store, task) is State.SUCCEEDED
        worker.lease.close()
        await store.unregister("w")
    finally:
        await store.close()


async def test_all_that_the_former_version_calls_and_reads_is_still_there(postgres_url: str) -> None:
    """What fails here would fail workers of the last release while a newer one starts beside them: keep the old signature for one
    number of FUNCTIONS longer, under its name, and give the new one another. Before the first release: `python -m tools.signatures`."""
    await (await opened(postgres_url)).close()
    with admin(postgres_url) as connection:
        present = signatures(connection, schema_of(postgres_url))
    texts = statements("duetime")
    called = set(re.findall(r"\bduetime\.(\w+)\(", "\n".join(getattr(texts, name) for name in texts.names())))
    assert "claim" in called
    former = recorded()
    assert len(former) > 200
    relied_on = {line for line in former if line.startswith(("table", "view")) or line.split(" ")[1].partition("(")[0] in called}
    assert sorted(relied_on - present) == []


async def test_functions_are_made_over_those_of_the_former_version(postgres_url: str) -> None:
    """A function with the former version's arguments may neither return something else nor be left as it was."""
    await (await opened(postgres_url)).close()
    schema = schema_of(postgres_url)
    with admin(postgres_url) as connection, connection.transaction():
        for line in recorded():
            kind, _, rest = line.replace("duetime.", f"{schema}.").partition(" ")
            if kind not in ("function", "procedure") or "anyarray" in rest:
                continue
            name = rest.partition("(")[0]
            connection.execute(f"drop routine {schema}.{name} cascade".encode())
            rest = rest.removesuffix(" returns record")
            body = "begin raise exception 'the former version''s'; end"
            connection.execute(f"create {kind} {schema}.{rest} language plpgsql as $$ {body} $$".encode())
    pretend(postgres_url, FUNCTIONS - 1)
    await one_task_lives_and_ends(postgres_url)
    with admin(postgres_url) as connection:
        left = connection.execute(
            "select proname from pg_proc where pronamespace = %s::regnamespace and prosrc ~ 'former version'", (schema,)
        )
        assert left.fetchall() == []


async def test_functions_are_made_again_when_they_differ_and_left_alone_when_they_are_newer(postgres_url: str) -> None:
    await (await opened(postgres_url)).close()
    assert stored(postgres_url) == (FUNCTIONS, functions_digest())
    for version in (FUNCTIONS - 1, FUNCTIONS):
        pretend(postgres_url, version)
        await one_task_lives_and_ends(postgres_url)
        assert stored(postgres_url) == (FUNCTIONS, functions_digest())
    pretend(postgres_url, FUNCTIONS + 1)
    await one_task_lives_and_ends(postgres_url)
    assert stored(postgres_url) == (FUNCTIONS + 1, "other")
    pretend(postgres_url, FUNCTIONS + 2)
    with pytest.raises(StoreUnavailable, match=f"functions .* have version {FUNCTIONS + 2}.* upgrade Duetime"):
        await opened(postgres_url)


async def test_older_functions_are_refused_by_a_program_that_may_not_make_them(postgres_url: str) -> None:
    await (await opened(postgres_url)).close()
    pretend(postgres_url, FUNCTIONS - 1)
    store = store_from_url(postgres_url)
    with pytest.raises(StoreUnavailable, match=r"functions .* older .* run `duetime migrate`"):
        await store.open(migrate=False)


async def test_a_role_that_may_not_make_functions_is_told_to_migrate_as_their_owner(postgres_url: str) -> None:
    await (await opened(postgres_url)).close()
    pretend(postgres_url, FUNCTIONS - 1)
    schema, role = schema_of(postgres_url), f"m_{schema_of(postgres_url)}"
    rights = ("usage on schema {0}", "all on all tables in schema {0}", "all on all sequences in schema {0}")
    with admin(postgres_url) as connection:
        connection.execute(f"create role {role} login".encode())
        try:
            for each in rights:
                connection.execute(f"grant {each.format(schema)} to {role}".encode())
            store = store_from_url(postgres_url.replace("//duetime@", f"//{role}@"))
            with pytest.raises(StoreUnavailable, match=r"functions .* older .* run `duetime migrate` as the role that owns them"):
                await store.open()
        finally:
            connection.execute(f"drop owned by {role}; drop role {role}".encode())


async def test_grants_outlive_functions_that_are_made_again(postgres_url: str) -> None:
    await (await opened(postgres_url)).close()
    schema, role = schema_of(postgres_url), f"g_{schema_of(postgres_url)}"
    with admin(postgres_url) as connection:
        connection.execute(f"create role {role}; grant usage on schema {schema} to {role}".encode())
        try:
            connection.execute(f"revoke execute on all routines in schema {schema} from public".encode())
            connection.execute(
                f"grant execute on function {schema}.clock to {role}; grant select on {schema}.open_attempt to {role}".encode()
            )
            pretend(postgres_url, FUNCTIONS, "other")
            await (await opened(postgres_url)).close()
            assert stored(postgres_url)[1] == functions_digest()
            connection.execute(f"set role {role}; select {schema}.clock(); select count(*) from {schema}.open_attempt; reset role".encode())
        finally:
            connection.execute(f"reset role; drop owned by {role}; drop role {role}".encode())


async def test_a_worker_goes_on_while_functions_are_made_again_under_it(postgres_url: str) -> None:
    """Many others open the store meanwhile and find that the functions differ; no attempt fails and none is done again."""
    app = App(postgres_url)
    attempts: list[int] = []

    @app.task
    async def work(number: int) -> None:
        attempts.append(number)

    made = 0
    async with app, app.worker():
        for start in range(0, 2_000, 100):
            adding = asyncio.create_task(app.submit_many([work.new(number=number) for number in range(start, start + 100)]))
            await asyncio.to_thread(pretend, postgres_url, FUNCTIONS, f"other {start}")
            others = [store_from_url(f"{postgres_url}&connections=1") for _ in range(2)]
            await asyncio.gather(*(other.open() for other in others))
            await asyncio.gather(*(other.close() for other in others))
            made += (await asyncio.to_thread(stored, postgres_url))[1] == functions_digest()
            await adding
        await wait_until(lambda: len(attempts) == 2_000, "all to have run", 60)
    assert made == 20
    assert sorted(attempts) == list(range(2_000))
    with admin(postgres_url) as connection:
        ends = connection.execute(
            f"select state, attempt, count(*) from {schema_of(postgres_url)}.history group by 1, 2".encode()
        ).fetchall()
    assert ends == [("succeeded", 1, 2_000)]


@pytest.mark.parametrize("function", ["add_new", "claim"])
async def test_the_hot_functions_plan_once_and_not_for_the_values_of_a_call(postgres_url: str, function: str) -> None:
    """A plan for given values holds a copy of all new tasks for each column that it reads."""
    await (await opened(postgres_url)).close()
    with admin(postgres_url) as connection:
        query = "select p.proconfig from pg_proc as p where p.proname = %s and p.pronamespace = %s::regnamespace"
        [(settings,)] = connection.execute(query, (function, schema_of(postgres_url))).fetchall()
    assert "plan_cache_mode=force_generic_plan" in str(settings)
