"""Tokens as a server uses them: made, checked without a read of the store, bounded, rotated, revoked, and audited."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from duetime import App
from duetime.client.access.service import Tokens
from duetime.client.access.token_cache import KEEP, KEEP_WITHOUT_STORE, READS_AT_ONCE, TRY_AGAIN
from duetime.client.access.tokens import LocalTokens, UseNotes
from duetime.clock import Instant, ManualClock, to_datetime
from duetime.duties import Pruner
from duetime.errors import Conflict, InvalidValue, StoreUnavailable, TokenNotFound
from duetime.model.access import AuditEntry, AuditOutcome, Caller, Denial, Refusal, Scope, TokenRecord
from duetime.runtime.service import Alarms
from duetime.store.sqlite.store import SqliteStore

READ, SUBMIT, OPERATE = Scope.READ, Scope.SUBMIT, Scope.OPERATE
UNKNOWN = f"dt_{'0' * 16}_{'0' * 64}"


class WatchedStore(SqliteStore):
    """A store that counts reads of tokens, and that can be made to fail, or to wait."""

    def __init__(self, path: str, clock: ManualClock) -> None:
        super().__init__(path, clock=clock)
        self.reads = 0
        self.broken = False
        self.hold: asyncio.Event | None = None
        self.holding = asyncio.Event()

    async def tokens(self) -> list[TokenRecord]:
        self.reads += 1
        self._refuse()
        found = await super().tokens()
        if self.hold is not None:
            self.holding.set()
            await self.hold.wait()
        return found

    async def note_use(self, uses: Mapping[str, Instant]) -> None:
        self._refuse()
        await super().note_use(uses)

    async def add_audit(self, entries: Sequence[AuditEntry]) -> None:
        self._refuse()
        await super().add_audit(entries)

    def _refuse(self) -> None:
        if self.broken:
            raise StoreUnavailable("the store is broken on purpose")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[WatchedStore]:
    store = WatchedStore(str(tmp_path / "duetime.db"), clock)
    await store.open()
    yield store
    await store.close()


def process(store: WatchedStore, clock: ManualClock, user: str = "anna@shop") -> Tokens:
    """Return a store of tokens as another process would have it."""
    return LocalTokens(store, user=user, opened=store.open, clock=clock)


@pytest.fixture
def tokens(store: WatchedStore, clock: ManualClock) -> Tokens:
    return process(store, clock)


def denial(answer: Caller | Refusal) -> Denial | None:
    return answer.why if isinstance(answer, Refusal) else None


def all_bytes_below(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


async def history(tokens: Tokens) -> list[tuple[str, str, str, AuditOutcome]]:
    return [(entry.by, entry.action, entry.subject, entry.outcome) for entry in (await tokens.audit.list()).items]


# ---- making and checking ----


async def test_a_tokens_bearer_is_known_by_its_name(tokens: Tokens) -> None:
    made = await tokens.create("shop", scopes=["submit"], handlers=["shop.*"], note="the web shop")
    caller = await tokens.check(made.token, SUBMIT, "shop.expire", origin="10.0.0.1")
    assert isinstance(caller, Caller)
    assert (caller.submitted_by, caller.token, caller.origin) == ("shop", made.info.id, "10.0.0.1")
    assert denial(await tokens.check(made.token, OPERATE)) is Denial.SCOPE
    assert denial(await tokens.check(made.token, SUBMIT, "mail.send")) is Denial.HANDLER


@pytest.mark.parametrize("text", [None, "", "  "])
async def test_without_a_token_nobody_is_let_in(tokens: Tokens, text: str | None) -> None:
    assert denial(await tokens.check(text, READ)) is Denial.MISSING


async def test_a_wrong_secret_an_unknown_id_and_nonsense_are_answered_alike(tokens: Tokens) -> None:
    made = await tokens.create("shop", scopes=["admin"])
    wrong = made.token[:-1] + ("0" if made.token[-1] != "0" else "1")
    answers = {repr(await tokens.check(text, READ)) for text in (wrong, UNKNOWN, "dt_", "' or 1=1 --", "\0" * 99, "\ud800")}
    assert len(answers) == 1
    assert "unknown" in answers.pop()


async def test_the_secret_is_written_nowhere(tokens: Tokens, store: WatchedStore, tmp_path: Path) -> None:
    made = await tokens.create("shop", scopes=["read"])
    rotated = await tokens.rotate(made.token)
    await tokens.check(rotated.token, READ)
    await tokens.note_uses()
    with pytest.raises(InvalidValue):
        await tokens.create(rotated.token, scopes=["read"])
    await tokens.revoke(rotated.token)
    with pytest.raises(TokenNotFound) as refused:
        await tokens.revoke(rotated.token)
    assert rotated.token.split("_")[2] not in str(refused.value)
    await store.close()
    written = all_bytes_below(tmp_path)
    assert made.info.id.encode() in written
    for token in (made.token, rotated.token):
        assert token.split("_")[2].encode() not in written


async def test_every_token_has_a_secret_of_its_own(tokens: Tokens) -> None:
    made = [await tokens.create(f"t{n}", scopes=["read"]) for n in range(20)]
    assert len({new.token.split("_")[2] for new in made}) == len({new.info.id for new in made}) == 20


async def test_an_expired_token_is_refused_and_its_name_free_again(tokens: Tokens, clock: ManualClock) -> None:
    made = await tokens.create("shop", scopes=["read"], expires=timedelta(days=90))
    until = await tokens.create("mail", scopes=["read"], expires=to_datetime(clock.now()) + timedelta(days=91))
    with pytest.raises(Conflict, match="rotate or revoke"):
        await tokens.create("shop", scopes=["read"])
    clock.advance(timedelta(days=90))
    assert denial(await tokens.check(made.token, READ)) is Denial.EXPIRED
    assert denial(await tokens.check(until.token, READ)) is None
    assert {info.name: info.expired for info in await tokens.list()} == {"shop": True, "mail": False}
    again = await tokens.create("shop", scopes=["submit"])
    assert denial(await tokens.check(again.token, SUBMIT)) is None
    assert denial(await tokens.check(made.token, READ)) is Denial.UNKNOWN


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("", {}, "must not be empty"),
        ("a\nb", {}, "control characters"),
        ("x" * 101, {}, "at most 100 characters"),
        ("0123456789abcdef", {}, "must not look like a token"),
        ("shop", {"scopes": []}, "at least one scope"),
        ("shop", {"scopes": ["admin"], "handlers": ["work"]}, "admin token cannot be restricted"),
        ("shop", {"expires": 0}, "in the future"),
        ("shop", {"expires": datetime(2000, 1, 1, tzinfo=UTC)}, "in the future"),
        ("shop", {"expires": datetime(2100, 1, 1)}, "time zone"),
        ("shop", {"rate": 0}, "rate must be"),
        ("shop", {"note": "x" * 1_001}, "note must have"),
    ],
)
async def test_what_makes_no_sense_is_refused(tokens: Tokens, name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        await tokens.create(name, **{"scopes": ["read"], **options})  # type: ignore[arg-type]
    assert await tokens.list() == []
    assert not await tokens.in_use()


async def test_a_server_learns_whether_any_token_is_in_use(tokens: Tokens, clock: ManualClock) -> None:
    assert not await tokens.in_use()
    await tokens.create("shop", scopes=["read"], expires=60)
    assert await tokens.in_use()
    clock.advance(60)
    assert not await tokens.in_use()


# ---- rotating and revoking ----


async def test_after_a_rotation_both_secrets_are_good_for_the_grace(tokens: Tokens, clock: ManualClock) -> None:
    old = await tokens.create("shop", scopes=["read"])
    new = await tokens.rotate("shop", grace=3_600)
    assert new.info.id == old.info.id
    assert [denial(await tokens.check(each.token, READ)) for each in (old, new)] == [None, None]
    clock.advance(3_600)
    assert [denial(await tokens.check(each.token, READ)) for each in (old, new)] == [Denial.UNKNOWN, None]


async def test_a_leaked_secret_is_ended_at_once_by_a_rotation_without_grace(tokens: Tokens) -> None:
    old = await tokens.create("shop", scopes=["read"])
    await tokens.check(old.token, READ)
    new = await tokens.rotate(old.token, grace=0)
    assert [denial(await tokens.check(each.token, READ)) for each in (old, new)] == [Denial.UNKNOWN, None]
    with pytest.raises(InvalidValue, match="grace must not be negative"):
        await tokens.rotate("shop", grace=-1)


async def test_a_rotation_keeps_the_expiry_unless_it_gets_another(tokens: Tokens, clock: ManualClock) -> None:
    made = await tokens.create("shop", scopes=["read"], expires=60)
    assert (await tokens.rotate("shop")).info.expires_at == made.info.expires_at
    clock.advance(61)
    with pytest.raises(Conflict, match="has expired"):
        await tokens.rotate("shop")
    revived = await tokens.rotate("shop", expires=60)
    assert denial(await tokens.check(revived.token, READ)) is None


async def test_of_two_rotations_at_once_one_is_told_to_try_again(tokens: Tokens) -> None:
    await tokens.create("shop", scopes=["read"])
    answers = await asyncio.gather(tokens.rotate("shop"), tokens.rotate("shop"), return_exceptions=True)
    [new] = [answer for answer in answers if not isinstance(answer, BaseException)]
    [lost] = [answer for answer in answers if isinstance(answer, BaseException)]
    assert isinstance(lost, Conflict)
    assert denial(await tokens.check(new.token, READ)) is None


async def test_a_revoked_token_is_refused_at_once_here_and_soon_elsewhere(tokens: Tokens, store: WatchedStore, clock: ManualClock) -> None:
    made = await tokens.create("shop", scopes=["read"])
    elsewhere = process(store, clock)
    assert denial(await tokens.check(made.token, READ)) is denial(await elsewhere.check(made.token, READ)) is None
    assert (await tokens.revoke("shop")).id == made.info.id
    assert denial(await tokens.check(made.token, READ)) is Denial.UNKNOWN
    clock.advance(KEEP)
    assert denial(await elsewhere.check(made.token, READ)) is Denial.UNKNOWN
    with pytest.raises(TokenNotFound):
        await tokens.revoke("shop")
    with pytest.raises(TokenNotFound):
        await tokens.rotate("shop")


async def test_a_read_that_began_before_a_revocation_does_not_bring_the_token_back(tokens: Tokens, store: WatchedStore) -> None:
    made = await tokens.create("shop", scopes=["read"])
    store.hold = asyncio.Event()
    checking = asyncio.ensure_future(tokens.check(made.token, READ))
    await store.holding.wait()
    held, store.hold = store.hold, None
    await tokens.revoke("shop")
    held.set()
    await checking
    assert denial(await tokens.check(made.token, READ)) is Denial.UNKNOWN


# ---- what a process knows ----


async def test_a_request_costs_no_read_of_the_store(tokens: Tokens, store: WatchedStore, clock: ManualClock) -> None:
    made = await tokens.create("shop", scopes=["read"])
    await tokens.check(made.token, READ)
    before = store.reads
    for _ in range(100):
        assert denial(await tokens.check(made.token, READ)) is None
    assert store.reads == before
    clock.advance(KEEP)
    await tokens.check(made.token, READ)
    assert store.reads == before + 1


async def test_requests_that_come_together_share_one_read(tokens: Tokens, store: WatchedStore, clock: ManualClock) -> None:
    made = await tokens.create("shop", scopes=["read"])
    before = store.reads
    answers = await asyncio.gather(*(tokens.check(made.token, READ) for _ in range(50)))
    assert [denial(answer) for answer in answers] == [None] * 50
    assert store.reads == before + 1


async def test_a_request_that_goes_away_leaves_the_reading_to_the_others(tokens: Tokens, store: WatchedStore) -> None:
    made = await tokens.create("shop", scopes=["read"])
    store.hold = asyncio.Event()
    first = asyncio.ensure_future(tokens.check(made.token, READ))
    await store.holding.wait()
    others = [asyncio.ensure_future(tokens.check(made.token, READ)) for _ in range(3)]
    await asyncio.sleep(0)
    first.cancel()
    store.hold = None
    assert [denial(answer) for answer in await asyncio.gather(*others)] == [None] * 3
    assert first.cancelled()


async def test_a_token_that_another_process_made_is_found_at_once(tokens: Tokens, store: WatchedStore, clock: ManualClock) -> None:
    elsewhere = process(store, clock)
    old = await tokens.create("old", scopes=["read"])
    assert denial(await elsewhere.check(old.token, READ)) is None
    new = await tokens.create("new", scopes=["read"])
    assert denial(await elsewhere.check(new.token, READ)) is None


async def test_who_invents_tokens_does_not_decide_how_often_the_store_is_read(tokens: Tokens, store: WatchedStore) -> None:
    for n in range(500):
        assert denial(await tokens.check(f"dt_{n:016x}_{'0' * 64}", READ)) is Denial.UNKNOWN
    assert store.reads <= READS_AT_ONCE + 1


async def test_known_tokens_stay_good_for_a_while_when_the_store_cannot_be_read(
    tokens: Tokens, store: WatchedStore, clock: ManualClock
) -> None:
    made = await tokens.create("shop", scopes=["read"])
    await tokens.check(made.token, READ)
    store.broken = True
    before = store.reads
    clock.advance(KEEP)
    for _ in range(10):
        assert denial(await tokens.check(made.token, READ)) is None
    assert store.reads == before + 1, "it is not asked again at every request"
    clock.advance(KEEP_WITHOUT_STORE)
    with pytest.raises(StoreUnavailable, match="broken on purpose"):
        await tokens.check(made.token, READ)
    store.broken = False
    clock.advance(TRY_AGAIN)
    assert denial(await tokens.check(made.token, READ)) is None


async def test_nobody_is_let_in_before_the_tokens_could_be_read(tokens: Tokens, store: WatchedStore) -> None:
    store.broken = True
    with pytest.raises(StoreUnavailable):
        await tokens.check(UNKNOWN, READ)


# ---- how often ----


async def test_a_token_may_come_as_often_as_its_rate_says(tokens: Tokens, clock: ManualClock) -> None:
    made = await tokens.create("shop", scopes=["read"], rate=5)
    free = await tokens.create("free", scopes=["read"])
    answers = [denial(await tokens.check(made.token, READ)) for _ in range(12)]
    assert answers == [None] * 10 + [Denial.TOO_FAST] * 2
    refusal = await tokens.check(made.token, OPERATE)
    assert isinstance(refusal, Refusal)
    assert refusal.wait == pytest.approx(0.2)
    assert [denial(await tokens.check(free.token, READ)) for _ in range(50)] == [None] * 50
    clock.advance(refusal.wait + 0.01)
    assert denial(await tokens.check(made.token, READ)) is None
    assert denial(await tokens.check(made.token, READ)) is Denial.TOO_FAST


async def test_what_is_refused_for_its_scope_counts_too(tokens: Tokens) -> None:
    made = await tokens.create("shop", scopes=["read"], rate=1)
    answers = [denial(await tokens.check(made.token, OPERATE)) for _ in range(3)]
    assert answers == [Denial.SCOPE, Denial.SCOPE, Denial.TOO_FAST]


# ---- last use ----


async def test_last_uses_are_written_together(tokens: Tokens, store: WatchedStore, clock: ManualClock) -> None:
    made = [await tokens.create(name, scopes=["read"]) for name in ("a", "b", "c")]
    for new in made[:2]:
        await tokens.check(new.token, READ)
    used_at = to_datetime(clock.now())
    clock.advance(60)
    assert [info.last_used_at for info in await tokens.list()] == [None] * 3
    assert await tokens.note_uses() == 2
    assert [info.last_used_at for info in await tokens.list()] == [used_at, used_at, None]
    assert await tokens.note_uses() == 0


async def test_uses_that_could_not_be_written_are_written_later(tokens: Tokens, store: WatchedStore, clock: ManualClock) -> None:
    made = await tokens.create("shop", scopes=["read"])
    await tokens.check(made.token, READ)
    store.broken = True
    alarms = Alarms()
    notes = UseNotes(tokens, alarms)
    with pytest.raises(StoreUnavailable):
        await notes.run_once()
    store.broken = False
    assert await notes.run_once() == 10.0
    alarms.close()
    assert [info.last_used_at for info in await tokens.list()] == [to_datetime(clock.now())]


# ---- the audit ----


async def test_everything_done_to_tokens_is_in_the_audit_also_after_they_are_gone(tokens: Tokens) -> None:
    boss = Caller(name="boss", token="f" * 16, origin="10.0.0.7")
    await tokens.create("shop", scopes=["read"], by=boss)
    await tokens.rotate("shop", by=boss)
    with pytest.raises(Conflict):
        await tokens.create("shop", scopes=["read"])
    await tokens.revoke("shop", by=boss)
    done, refused = AuditOutcome.DONE, AuditOutcome.REFUSED
    assert await history(tokens) == [
        ("boss", "tokens.revoke", "shop", done),
        ("anna@shop", "tokens.create", "shop", refused),
        ("boss", "tokens.rotate", "shop", done),
        ("boss", "tokens.create", "shop", done),
    ]
    entry = (await tokens.audit.list(by="boss", action="tokens.create")).items[0]
    assert (entry.token, entry.origin) == ("f" * 16, "10.0.0.7")
    assert "scopes read" in entry.detail


async def test_an_action_is_kept_with_how_it_ended(tokens: Tokens) -> None:
    async with tokens.audit.acting("gates.pause", "work") as act:
        act.detail = "stock service down"
    async with tokens.audit.acting("tasks.cancel", "filter") as act:
        act.outcome = AuditOutcome.REFUSED
    with pytest.raises(Conflict):
        async with tokens.audit.acting("tasks.edit", "one"):
            raise Conflict("it runs")
    with pytest.raises(RuntimeError):
        async with tokens.audit.acting("tasks.retry", "two"):
            raise RuntimeError
    entries = (await tokens.audit.list()).items
    assert [(entry.action, entry.outcome.value, entry.detail) for entry in entries] == [
        ("tasks.retry", "failed", "RuntimeError"),
        ("tasks.edit", "refused", "it runs"),
        ("tasks.cancel", "refused", ""),
        ("gates.pause", "done", "stock service down"),
    ]


async def test_whatever_somebody_sent_can_be_kept(tokens: Tokens) -> None:
    caller = Caller(name="x\0y", origin="\ud800\r\n")
    await tokens.audit.record("tasks.cancel", "z" * 9_999, by=caller, detail="\x1b[31m" + "d" * 9_999)
    [entry] = (await tokens.audit.list()).items
    assert (entry.by, entry.origin) == ("x\ufffdy", "\ufffd\ufffd\ufffd")
    assert (len(entry.subject), len(entry.detail), entry.detail[0]) == (500, 2_000, "\ufffd")


async def test_an_entry_that_cannot_be_stored_goes_into_the_log(
    tokens: Tokens, store: WatchedStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "duetime.access.audit"):
        async with tokens.audit.acting("gates.pause", "work"):
            store.broken = True
    [record] = caplog.records
    entry = msgspec.json.decode(record.getMessage().partition("): ")[2])
    assert (entry["by"], entry["action"], entry["subject"], entry["outcome"]) == ("anna@shop", "gates.pause", "work", "done")


async def test_the_audit_is_read_in_pages_and_by_time(tokens: Tokens, clock: ManualClock) -> None:
    for n in range(5):
        await tokens.audit.record("gates.pause", str(n))
        clock.advance(60)
    first = await tokens.audit.list(limit=3)
    rest = await tokens.audit.list(limit=3, cursor=first.next)
    assert [entry.subject for entry in first.items + rest.items] == ["4", "3", "2", "1", "0"]
    assert rest.next is None
    two_minutes_ago = to_datetime(clock.now()) - timedelta(seconds=120)
    assert [entry.subject for entry in (await tokens.audit.list(since=two_minutes_ago)).items] == ["4", "3"]
    assert [entry.subject for entry in (await tokens.audit.list(until=two_minutes_ago, subject="2")).items] == ["2"]


async def test_the_pruner_removes_what_is_older_than_400_days(tokens: Tokens, store: WatchedStore, clock: ManualClock) -> None:
    await tokens.audit.record("gates.pause", "old")
    clock.advance(timedelta(days=1))
    await tokens.audit.record("gates.pause", "young")
    alarms = Alarms()
    pruner = Pruner(store, alarms, {})
    clock.advance(timedelta(days=399))
    assert await pruner.prune() == 0
    clock.advance(1)
    assert await pruner.prune() == 1
    alarms.close()
    assert [entry.subject for entry in (await tokens.audit.list()).items] == ["young"]


async def test_an_app_has_tokens_of_its_store_and_acts_in_its_users_name(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/app.db", user="anna@shop")
    made = await app.tokens.create("shop", scopes=["read"])
    assert made.info.created_by == "anna@shop"
    assert (await history(app.tokens))[0][0] == "anna@shop"
    await app.close()
