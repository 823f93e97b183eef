"""Reading schedules by name and by page, skips, day calendars, and who is told of all this."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from duetime.clock import DAY, ManualClock
from duetime.duties.pruner import Pruner
from duetime.model.rules import AfterEnd, DayCalendar
from duetime.model.schedule import ScheduleSpec, SkipReason
from duetime.model.task import Edge
from duetime.runtime.service import Alarms
from duetime.store import Store
from duetime.store.schedules import ScheduleFilter, ScheduleWrite
from duetime.store.values import HintKind
from tests.conformance.build import add, wait_until
from tests.conformance.conftest import Another
from tests.conformance.schedules import EVERY_MINUTE, again, bringing, new, occurrence, put, removal, schedule, skip, stored
from tests.conformance.test_wakeups import HintRecorder

WEEKEND = DayCalendar(weekdays="sat,sun")


async def names(store: Store, **filter: Any) -> list[str]:
    return [record.name for record in await store.list_schedules(ScheduleFilter(**filter))]


# ---- by name and by page ----


async def test_schedules_are_given_by_name_in_the_order_of_the_question(store: Store) -> None:
    await put(store, new("a"), new("b"))
    found = await store.schedules(["b", "nobody", "a", "b"])
    assert [record and record.name for record in found] == ["b", None, "a", "b"]


async def test_a_page_is_in_the_order_of_names_by_code_point(store: Store) -> None:
    given = ["b", "a", "B", "_", "Z", "ä", "a-b", "a b", "ab", "ﬀ", "𐐀", "1", "10", "2", "é", "z"]
    await put(store, *[new(name) for name in given])
    assert await names(store) == sorted(given)
    assert sorted(given)[-2:] == ["ﬀ", "𐐀"]  # by code point, not by the units of UTF-16


async def test_pages_follow_one_another(store: Store) -> None:
    given = [f"s{number:02d}" for number in range(25)]
    await put(store, *[new(name) for name in reversed(given)])
    seen: list[str] = []
    sizes = []
    while page := await names(store, after=seen[-1] if seen else "", limit=10):
        sizes.append(len(page))
        seen += page
    assert (seen, sizes) == (given, [10, 10, 5])
    assert await names(store, after="s10x", limit=2) == ["s11", "s12"]


async def test_a_page_has_records_as_they_are_stored(store: Store, clock: ManualClock) -> None:
    await put(store, new("a", clock.now(), collection="eu", paused=True, declared=3), new("b"))
    assert await store.list_schedules(ScheduleFilter()) == await store.schedules(["a", "b"])


async def test_a_page_of_large_schedules_ends_before_its_limit(store: Store) -> None:
    spec = ScheduleSpec(handler="work", rule=EVERY_MINUTE, payload=msgspec.Raw(b'{"text": "%b"}' % (b"x" * 990_000)))
    given = [f"s{number:02d}" for number in range(12)]
    for name in given:
        await put(store, new(name, spec=spec))
    first = await names(store)
    assert first == given[:8]
    assert await names(store, after=first[-1]) == given[8:]
    assert await names(store, after=given[-1]) == []


async def test_an_empty_store_has_an_empty_page(store: Store) -> None:
    assert await store.list_schedules(ScheduleFilter()) == []


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({"handler": "work"}, ["a", "b"]),
        ({"handler": "nobody"}, []),
        ({"paused": True}, ["b", "d"]),
        ({"paused": False}, ["a", "c"]),
        ({"declared": True}, ["c", "d"]),
        ({"declared": False}, ["a", "b"]),
        ({"handler": "other", "paused": False, "declared": True}, ["c"]),
        ({"handler": "other", "paused": True, "declared": False}, []),
        ({"paused": True, "after": "b"}, ["d"]),
        ({"paused": False, "limit": 1}, ["a"]),
        ({"prefix": "d", "handler": "other"}, ["d"]),
    ],
)
async def test_all_given_parts_of_a_filter_must_hold(store: Store, filter: dict[str, Any], expected: list[str]) -> None:
    await put(store, new("a"), new("b", paused=True))
    await put(store, new("c", handler="other", declared=0), new("d", handler="other", declared=7, paused=True))
    assert await names(store, **filter) == expected


async def test_a_filter_follows_changes_of_a_schedule(store: Store) -> None:
    await put(store, new("a"))
    await put(store, ScheduleWrite(name="a", expected=1, record=schedule("a", paused=True, handler="other", declared=1)))
    assert await names(store, handler="work") == []
    assert await names(store, handler="other", paused=True, declared=True) == ["a"]
    await put(store, removal(await stored(store, "a")))
    assert await names(store) == []


LAST = "\U0010ffff"
PREFIXED = [
    "",
    "a",
    "a%",
    "a.b",
    "a.b" + LAST,
    "a.b" + LAST + "x",
    "a.bc",
    "a.c",
    "a_b",
    "aXb",
    "b",
    "\ud7ff",
    "\ud7ffx",
    "\ue000",
    LAST,
    LAST + "a",
]


@pytest.mark.parametrize("prefix", ["", "a", "a.", "a.b", "a%", "a_", "A", "a.b" + LAST, "\ud7ff", LAST, LAST + LAST, "zz"])
async def test_a_prefix_is_taken_letter_by_letter(store: Store, prefix: str) -> None:
    given = [name for name in PREFIXED if name]
    await put(store, *[new(name) for name in given])
    assert await names(store, prefix=prefix) == sorted(name for name in given if name.startswith(prefix))
    assert await names(store, prefix=prefix, after="a.b") == sorted(name for name in given if name.startswith(prefix) and name > "a.b")


# ---- skips ----


async def test_skips_are_kept_as_they_were_written(store: Store, clock: ManualClock) -> None:
    at = clock.now()
    single = skip("a", at, at + 5, reason=SkipReason.OVERLAP, note='run "x" \\ has not ended, {yet} ☂')
    several = skip("a", at + 10, at + 50, until_at=at + 40, count=1_000_000, reason=SkipReason.FULL)
    await put(store, bringing(new("a"), skips=(single, several)))
    assert await store.skips("a", 10) == [several, single]


@pytest.mark.parametrize("reason", sorted(SkipReason))
async def test_every_reason_is_kept(store: Store, reason: SkipReason) -> None:
    await put(store, bringing(new("a"), skips=(skip("a", 5, reason=reason),)))
    assert [one.reason for one in await store.skips("a", 10)] == [reason]


async def test_skips_come_the_latest_planned_first_and_page_by_page(store: Store) -> None:
    order = [7, 1, 9, 3, 5, 2, 8, 6, 4, 0]
    await put(store, bringing(new("a"), skips=tuple(skip("a", planned_at, 1_000 - planned_at) for planned_at in order[:5])))
    await put(store, bringing(again(await stored(store, "a")), skips=tuple(skip("a", planned_at, 5) for planned_at in order[5:])))
    assert [one.planned_at for one in await store.skips("a", 100)] == list(range(9, -1, -1))
    assert [one.planned_at for one in await store.skips("a", 3)] == [9, 8, 7]
    assert [one.planned_at for one in await store.skips("a", 3, 7)] == [6, 5, 4]
    assert [one.planned_at for one in await store.skips("a", 3, 1)] == [0]
    assert await store.skips("a", 3, 0) == []


async def test_skips_are_told_of_one_schedule_only(store: Store) -> None:
    await put(store, bringing(new("a"), skips=(skip("a", 1),)), bringing(new("ab"), skips=(skip("ab", 2),)))
    assert [one.planned_at for one in await store.skips("a", 10)] == [1]
    assert await store.skips("nobody", 10) == []


async def test_skips_outlive_their_schedule_until_they_are_pruned(store: Store) -> None:
    await put(store, bringing(new("a"), skips=(skip("a", 1),)))
    await put(store, bringing(removal(await stored(store, "a")), skips=(skip("a", 2, reason=SkipReason.CHANGED),)))
    assert [one.planned_at for one in await store.skips("a", 10)] == [2, 1]
    assert await store.prune_skips(3, 10) == 2
    assert await store.skips("a", 10) == []


async def test_pruning_removes_skips_decided_before_an_instant(store: Store, clock: ManualClock) -> None:
    at = clock.now()
    await put(store, bringing(new("a"), skips=tuple(skip("a", at - 10 * number, at + number) for number in range(5))))
    assert await store.prune_skips(at, 10) == 0
    assert await store.prune_skips(at + 2, 10) == 2
    assert [one.at for one in await store.skips("a", 10)] == [at + 2, at + 3, at + 4]
    assert await store.prune_skips(at + 2, 10) == 0


async def test_pruning_skips_stops_at_its_limit(store: Store) -> None:
    await put(store, *[bringing(new(f"s{number}"), skips=tuple(skip(f"s{number}", at) for at in range(5))) for number in range(5)])
    assert [await store.prune_skips(1_000, 10) for _ in range(4)] == [10, 10, 5, 0]


async def test_the_pruner_keeps_skips_for_thirty_days(store: Store, clock: ManualClock) -> None:
    await put(store, bringing(new("a"), skips=(skip("a", 1, clock.now()), skip("a", 2, clock.now() + 1))))
    alarms = Alarms()
    pruner = Pruner(store, alarms, {})
    clock.set(clock.now() + 30 * DAY)
    assert await pruner.prune() == 0
    clock.set(clock.now() + 1)
    assert await pruner.prune() == 1
    assert [one.planned_at for one in await store.skips("a", 10)] == [2]
    alarms.close()


# ---- day calendars ----


async def test_a_calendar_is_stored_replaced_and_removed(store: Store) -> None:
    assert await store.calendars() == {}
    assert await store.put_calendar("free", WEEKEND) is False
    assert await store.calendars() == {"free": WEEKEND}
    hours = DayCalendar(mode="include", weekdays="mon-fri", times="09:00-17:00", tz="Europe/Berlin", also=["free"])
    assert await store.put_calendar("free", hours) is True
    assert await store.put_calendar('ä "b" \\', DayCalendar(dates=["2030-04-22"], yearly=["12-25", "12-26"])) is False
    assert await store.calendars() == {"free": hours, 'ä "b" \\': DayCalendar(dates=["2030-04-22"], yearly=["12-25", "12-26"])}
    assert await store.put_calendar("free", None) is True
    assert await store.put_calendar("free", None) is False
    assert list(await store.calendars()) == ['ä "b" \\']


async def test_calendars_are_there_for_other_store_objects(store: Store, another: Another) -> None:
    await store.put_calendar("free", WEEKEND)
    assert await (await another()).calendars() == {"free": WEEKEND}


# ---- who is told ----


@pytest.fixture
async def recorder(store: Store) -> AsyncIterator[HintRecorder]:
    recorder = HintRecorder()
    listener = store.listen(recorder)
    yield recorder
    listener.close()


async def test_a_written_schedule_is_told_with_the_earliest_time_to_look(store: Store, recorder: HintRecorder, clock: ManualClock) -> None:
    await recorder.quiet()
    await put(store, new("a", clock.now() + 50), new("b", clock.now() + 5), new("c"))
    await wait_until(lambda: recorder.heard(HintKind.SCHEDULES), "a hint of schedules")
    assert [hint.at for hint in recorder.hints if hint.kind is HintKind.SCHEDULES] == [clock.now() + 5]
    assert not [hint for hint in recorder.hints if hint.kind is HintKind.DUE]


async def test_a_removed_schedule_is_told(store: Store, recorder: HintRecorder) -> None:
    await put(store, new("a"))
    await recorder.quiet()
    await put(store, removal(await stored(store, "a")))
    await wait_until(lambda: recorder.heard(HintKind.SCHEDULES), "a hint of schedules")


async def test_tasks_that_come_with_a_schedule_are_told_as_due(store: Store, recorder: HintRecorder, clock: ManualClock) -> None:
    await recorder.quiet()
    await put(store, bringing(new("a"), occurrence("a", clock.now() + 9), occurrence("a", clock.now() + 5)), new("b"))
    await wait_until(lambda: recorder.heard(HintKind.DUE), "a hint of due tasks")
    assert [hint.at for hint in recorder.hints if hint.kind is HintKind.DUE] == [clock.now() + 5]


async def test_tasks_that_wait_for_nothing_any_more_are_told_as_due(store: Store, recorder: HintRecorder, clock: ManualClock) -> None:
    parent = await add(store)
    await store.cancel([parent.id])
    await recorder.quiet()
    await put(store, bringing(new("a"), occurrence("a", clock.now(), edges=(Edge(parent.id, "end"),))))
    await wait_until(lambda: recorder.heard(HintKind.DUE), "a hint of due tasks")


async def test_a_write_that_did_not_fit_is_not_told(store: Store, recorder: HintRecorder, clock: ManualClock) -> None:
    await put(store, new("a"))
    await recorder.quiet()
    assert await store.write_schedules([bringing(new("a", clock.now()), occurrence("a", clock.now()))]) == [False]
    assert await store.write_schedules([new("a"), new("b")], together=True) == [False, False]
    await store.put_calendar("last", WEEKEND)
    await wait_until(lambda: recorder.heard(HintKind.SCHEDULES), "a hint of schedules")
    assert [hint.kind for hint in recorder.hints if hint.kind is not HintKind.ANY] == [HintKind.SCHEDULES]


async def test_a_woken_schedule_and_a_calendar_are_told(store: Store, recorder: HintRecorder) -> None:
    await put(store, new("a", rule=AfterEnd(60)))
    await recorder.quiet()
    await store.wake_schedules(["a"])
    await wait_until(lambda: recorder.heard(HintKind.SCHEDULES), "a hint of schedules")
    for calendar in (WEEKEND, None):
        await recorder.quiet()
        await store.put_calendar("free", calendar)
        await wait_until(lambda: recorder.heard(HintKind.SCHEDULES), "a hint of schedules")


async def test_other_store_objects_are_told(store: Store, another: Another, clock: ManualClock) -> None:
    other, recorder = await another(), HintRecorder()
    listener = other.listen(recorder)
    try:
        for number in range(1_000):  # until it listens, it may miss some
            await put(store, new(f"s{number}", clock.now()))
            try:
                await wait_until(lambda: any(hint.kind is HintKind.SCHEDULES for hint in recorder.hints), "a hint of schedules", 0.1)
            except AssertionError:
                continue
            break
        assert any(hint.kind is HintKind.SCHEDULES for hint in recorder.hints)
    finally:
        listener.close()
