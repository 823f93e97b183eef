"""Sessions: how long they last, when other processes notice their end, and what they cost the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from duetime.client.access.sessions import IDLE, KEEP, LONGEST, Sessions
from duetime.client.access.tokens import LocalTokens
from duetime.clock import SECOND, ManualClock
from duetime.model.access import Caller, Denial, Refusal, SessionRecord
from duetime.store.sqlite.store import SqliteStore


class CountingStore(SqliteStore):
    """A store that counts reads and renewals of sessions."""

    reads = renewals = 0

    async def find_sessions(self, digests: Sequence[str]) -> list[SessionRecord | None]:
        self.reads += 1
        return await super().find_sessions(digests)

    async def renew_session(self, digest: str, idle_at: int) -> None:
        self.renewals += 1
        await super().renew_session(digest, idle_at)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[CountingStore]:
    store = CountingStore(str(tmp_path / "duetime.db"), clock=clock)
    await store.open()
    yield store
    await store.close()


def process(store: CountingStore, clock: ManualClock) -> tuple[Sessions, LocalTokens]:
    """Return what one server process has."""

    async def opened() -> None:
        pass

    tokens = LocalTokens(store, user="anna", opened=opened, clock=clock)
    return Sessions(lambda: store, lambda: tokens, clock=clock), tokens


async def signed_in(sessions: Sessions, tokens: LocalTokens, name: str = "anna") -> str:
    begun = await sessions.begin((await tokens.create(name, scopes=["read"])).token, origin="127.0.0.1")
    assert not isinstance(begun, Refusal)
    return begun[0]


async def test_a_session_ends_an_hour_after_its_last_use_and_twelve_hours_after_its_beginning(
    store: CountingStore, clock: ManualClock
) -> None:
    sessions, tokens = process(store, clock)
    secret = await signed_in(sessions, tokens)
    clock.advance(IDLE / SECOND)
    assert isinstance(await sessions.identify(secret), Refusal)

    secret = await signed_in(sessions, tokens, "bert")
    for _ in range(23):
        clock.advance(1_800)
        found = await sessions.identify(secret)
        assert isinstance(found, Caller)
        assert found.name == "bert"
    clock.advance(LONGEST / SECOND - 23 * 1_800)
    refused = await sessions.identify(secret)
    assert isinstance(refused, Refusal)
    assert refused.why is Denial.EXPIRED


async def test_the_end_of_a_session_is_noticed_by_other_processes_within_five_seconds(store: CountingStore, clock: ManualClock) -> None:
    (here, tokens), (there, _) = process(store, clock), process(store, clock)
    secret = await signed_in(here, tokens)
    assert isinstance(await there.identify(secret), Caller)
    await here.end(secret)
    assert isinstance(await here.identify(secret), Refusal)
    clock.advance(KEEP)
    assert isinstance(await there.identify(secret), Refusal)


async def test_an_expired_token_ends_its_sessions(store: CountingStore, clock: ManualClock) -> None:
    sessions, tokens = process(store, clock)
    made = await tokens.create("anna", scopes=["read"], expires=60)
    begun = await sessions.begin(made.token, origin="")
    assert not isinstance(begun, Refusal)
    clock.advance(59)
    assert isinstance(await sessions.identify(begun[0]), Caller)
    clock.advance(1)
    assert isinstance(await sessions.identify(begun[0]), Refusal)


async def test_many_open_pages_cost_one_read_in_five_seconds_and_a_write_in_five_minutes(store: CountingStore, clock: ManualClock) -> None:
    sessions, tokens = process(store, clock)
    secrets = [await signed_in(sessions, tokens, f"person {number}") for number in range(20)]
    store.reads = 0
    for _ in range(60):
        clock.advance(1)
        for secret in secrets:
            assert isinstance(await sessions.identify(secret), Caller)
    assert store.reads <= 12 + 1
    assert store.renewals == 0
    clock.advance(301)
    for secret in secrets:
        await sessions.identify(secret)
        await sessions.identify(secret)
    assert store.renewals == 20


async def test_invented_sessions_are_looked_up_a_bounded_number_of_times(store: CountingStore, clock: ManualClock) -> None:
    sessions, _ = process(store, clock)
    for number in range(500):
        assert isinstance(await sessions.identify(f"{number:064x}"), Refusal)
    assert store.reads <= 51
