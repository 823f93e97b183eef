"""Firing schedules: does one occurrence cost the same among many schedules, and how fast are many that are due at once?

The figures: with 100,000 schedules in the store, firing one occurrence costs at most 1.5 times what it costs with 1,000; 10,000 schedules
that are due in the same second are fired at no less than half of the rate at which `submit_many` stores the same tasks. What the
first look at so many schedules takes, in time and memory, is shown.

The clock of the store is set by hand, so nothing waits; every commit is as durable as the store makes it by default.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from bench.rounds import ROUNDS, Report, answer, console, in_process, interleave, median, median_ratio
from duetime import App
from duetime.clock import SECOND, Instant, ManualClock
from duetime.duties.firing import Firing
from duetime.ids import new_id
from duetime.model.rules import Cron, Every, Rule, plan_of
from duetime.model.schedule import ScheduleRecord, ScheduleSpec, ScheduleState
from duetime.runtime.service import Alarms
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.schedules import ScheduleWrite

MANY, FEW, TOGETHER = 100_000, 1_000, 10_000
OCCURRENCES = 500  # fired one after the other in each round
BATCH = 1_000
BEGIN: Instant = 1_900_000_000 * SECOND
HANDLER = "expire_order"
PAYLOAD = {"order_id": 12345, "note": "unpaid"}


def make_app(url: str) -> App:
    app = App(url)

    @app.task(name=HANDLER)
    async def expire_order(order_id: int, note: str) -> None: ...

    return app


# ---- the cases, each in a process of its own ----


async def _fill(store: Store, number: int, rule_of: Callable[[int], Rule]) -> None:
    """Store so many schedules, none of them due yet."""
    payload = msgspec.Raw(msgspec.json.encode(PAYLOAD))
    for start in range(0, number, BATCH):
        writes = []
        for index in range(start, min(start + BATCH, number)):
            rule = rule_of(index)
            record = ScheduleRecord(
                name=f"schedule-{index:06}",
                id=new_id(),
                version=0,
                revision=1,
                spec=ScheduleSpec(handler=HANDLER, rule=rule, payload=payload, overlap="allow"),
                state=ScheduleState(cursor=BEGIN),
                next_at=plan_of(rule).after(BEGIN),
            )
            writes.append(ScheduleWrite(name=record.name, expected=0, record=record))
        assert all(await store.write_schedules(writes))


async def fill_store(store: Store, number: int) -> None:
    """Store schedules that are spread evenly over a day, so that each is due alone."""
    await _fill(store, number, lambda index: Every(86_400, phase=round(index * 86_400 / number, 3)))


async def fill(url: str, number: int) -> dict[str, float]:
    async with make_app(url) as app:
        began = time.perf_counter()
        await fill_store(app.store, number)
        return {"seconds": time.perf_counter() - began}


async def one_by_one(url: str, occurrences: int) -> dict[str, float]:
    """Fire occurrences each at its own instant; return the seconds that one takes, and what starting took."""
    clock = ManualClock(BEGIN)
    store = store_from_url(url, clock=clock)
    began = time.perf_counter()
    await store.open()
    firing = Firing(store, Alarms())
    await firing.run_once()
    started = time.perf_counter() - began
    taken = 0.0
    for _ in range(occurrences):
        following = (await store.due_schedules(1)).next_at
        assert following is not None
        clock.set(following)
        began = time.perf_counter()
        await firing.run_once()
        taken += time.perf_counter() - began
    counts = await store.counts()
    await store.close()
    fired = sum(lane.due + lane.later for lane in counts.lanes)
    assert fired > 0
    assert fired % occurrences == 0, f"{fired} tasks of {occurrences} occurrences a round"
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
    return {"seconds": taken / occurrences, "start": started, "megabytes": memory}


async def at_once(url: str, number: int) -> dict[str, float]:
    """Fire so many schedules that are due in the same second; return the rate."""
    async with make_app(url) as app:
        await _fill(app.store, number, lambda index: Cron("0 12 * * *"))
    clock = ManualClock(BEGIN)
    store = store_from_url(url, clock=clock)
    await store.open()
    firing = Firing(store, Alarms())
    await firing.run_once()
    following = (await store.due_schedules(1)).next_at
    assert following is not None
    clock.set(following)
    began = time.perf_counter()
    fired = 0
    while fired < number:
        before = fired
        fired += await firing.fire_due()
        assert fired > before, f"{fired} of {number} fired"
    rate = number / (time.perf_counter() - began)
    await store.close()
    return {"rate": rate}


async def submitted(url: str, number: int) -> dict[str, float]:
    """Submit the same tasks as `at_once` makes, with all that an occurrence carries; return the rate."""
    return await _submit(url, number, {"planned_at": BEGIN, "meta": {"duetime.zone": "UTC", "duetime.local": "2030-03-17T17:46:40+00:00"}})


async def plain(url: str, number: int) -> dict[str, float]:
    """Submit as many tasks of the same handler and payload that belong to no schedule."""
    return await _submit(url, number, {})


async def _submit(url: str, number: int, extras: Mapping[str, Any]) -> dict[str, float]:
    async with make_app(url) as app:
        handler = app.handler(HANDLER)
        began = time.perf_counter()
        for start in range(0, number, BATCH):
            tasks = [handler.new(**PAYLOAD) for _ in range(min(BATCH, number - start))]
            if extras:
                tasks = [replace(task, schedule=f"schedule-{start + index:06}", **extras) for index, task in enumerate(tasks)]
            await app.submit_many(tasks)
        return {"rate": number / (time.perf_counter() - began)}


CASES = {"fill": fill, "one_by_one": one_by_one, "at_once": at_once, "submitted": submitted, "plain": plain}


def _case(name: str, url: str, number: int) -> dict[str, float]:
    return in_process("bench.schedules", "--case", name, "--url", url, "--number", str(number))


# ---- rounds ----


def measure(
    report: Report,
    new_store: Callable[[str], str],
    *,
    rounds: int = ROUNDS,
    many: int = MANY,
    together: int = TOGETHER,
    occurrences: int = OCCURRENCES,
) -> None:
    """Take the figures; `new_store` makes an empty store of a name and returns its URL."""
    few = max(1, many // (MANY // FEW))
    stores = {number: new_store(f"schedules_{number}") for number in (few, many)}
    for number, url in stores.items():
        with console.status(f"making {number:,} schedules"):
            _case("fill", url, number)
    _one_by_one(report, stores, few, many, rounds, occurrences)
    rates = interleave(
        {
            "fired": lambda: _case("at_once", new_store("schedules_at_once"), together)["rate"],
            "submitted": lambda: _case("submitted", new_store("schedules_submitted"), together)["rate"],
            "plain": lambda: _case("plain", new_store("schedules_plain"), together)["rate"],
        },
        rounds,
    )
    for name, beside, goal in (
        ("submitted", "submit_many of the same tasks", 0.5),
        ("plain", "submit_many of tasks without a schedule", None),
    ):
        report.add(
            f"firing {together:,} schedules due in the same second",
            f"{median(rates['fired']):,.0f}/s",
            f"{beside} {median(rates[name]):,.0f}/s",
            median_ratio(rates["fired"], rates[name]),
            goal,
        )


def _one_by_one(report: Report, stores: Mapping[int, str], few: int, many: int, rounds: int, occurrences: int) -> None:
    found: dict[int, list[dict[str, float]]] = {number: [] for number in stores}

    def case(number: int) -> float:
        found[number].append(_case("one_by_one", stores[number], occurrences))
        return found[number][-1]["seconds"]

    interleave({f"{number:,} schedules": partial(case, number) for number in stores}, rounds)

    def both(name: str) -> tuple[list[float], list[float]]:
        return [each[name] for each in found[many]], [each[name] for each in found[few]]

    for name, what, unit, factor, goal in (
        ("seconds", "firing one occurrence", "ms", 1e3, 1.5),
        ("start", "opening the store and a first look", "ms", 1e3, None),
        ("megabytes", "memory of the process that fires", "MB", 1.0, None),
    ):
        measured, beside = both(name)
        report.add(
            f"{what}, {many:,} schedules in the store",
            f"{median(measured) * factor:,.2f} {unit}",
            f"{few:,} schedules {median(beside) * factor:,.2f} {unit}",
            median_ratio(measured, beside),
            goal,
            at_most=True,
        )


def run(report: Report, *, rounds: int = ROUNDS, many: int = MANY, together: int = TOGETHER, occurrences: int = OCCURRENCES) -> None:
    """Take the figures on SQLite."""
    with contextlib.ExitStack() as folders:

        def new_store(name: str) -> str:
            folder = folders.enter_context(tempfile.TemporaryDirectory(prefix=name))
            return f"sqlite:///{folder}/bench.db"

        measure(report, new_store, rounds=rounds, many=many, together=together, occurrences=occurrences)


@contextlib.contextmanager
def _on_postgres() -> Iterator[Callable[[str], str]]:
    from bench.postgres.server import running_server

    with running_server() as server:

        def new_store(name: str) -> str:
            server.fresh(name)
            return server.url(name)

        yield new_store


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.schedules", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--schedules", type=int, default=MANY, help="in the larger store; the smaller one has a hundredth")
    parser.add_argument("--tasks", type=int, default=TOGETHER, help="schedules that are due in the same second")
    parser.add_argument("--occurrences", type=int, default=OCCURRENCES, help="fired one after the other in each round")
    parser.add_argument("--postgres", action="store_true", help="on PostgreSQL instead of SQLite")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        answer(**asyncio.run(CASES[options.case](options.url, options.number)))
        return
    sizes = {"rounds": options.rounds, "many": options.schedules, "together": options.tasks, "occurrences": options.occurrences}
    report = Report(f"Schedules on {'PostgreSQL' if options.postgres else 'SQLite'}")
    if options.postgres:
        with _on_postgres() as new_store:
            measure(report, new_store, **sizes)
    else:
        run(report, **sizes)
    report.show()


if __name__ == "__main__":
    main()
