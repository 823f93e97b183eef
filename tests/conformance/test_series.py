"""What happened when: counts and samples in buckets of time, folded without losing or doubling any."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from duetime.clock import DAY, SECOND, ManualClock
from duetime.duties import Sampler
from duetime.model.figures import ATTEMPTS, STALE_WRITES, FigureKey
from duetime.model.series import ALL, KEPT, STEPS, Load, Sample, Step, bucket_of
from duetime.runtime.service import Alarms
from duetime.store import Store
from duetime.store.values import Declaration
from tests.conformance.build import Worker, new_task
from tests.conformance.conftest import Another
from tests.conformance.stores import ROOT, StoreKind
from tests.servers.waiting import PATIENCE

SUCCEEDED = FigureKey(ATTEMPTS, "work", "succeeded")
FAILED = FigureKey(ATTEMPTS, "other", "failed")
STALE = FigureKey(STALE_WRITES)
HOUR = 3_600 * SECOND


async def counted(store: Store, step: Step = 10, handler: str | None = None) -> dict[tuple[int, str], dict[str, dict[str, int]]]:
    """Return all buckets of a step that have counts of attempts or stale writes."""
    return (await store.series(step, 0, 1 << 60, handler)).buckets


def attempts(succeeded: int = 0, failed: int = 0) -> dict[str, dict[str, int]]:
    return {ATTEMPTS: {name: count for name, count in (("succeeded", succeeded), ("failed", failed)) if count}}


async def test_figures_are_counted_in_the_bucket_of_the_stores_time(store: Store, clock: ManualClock) -> None:
    first = bucket_of(clock.now(), 10)
    await store.add_figures("a", 1, {SUCCEEDED: 3, FAILED: 1, STALE: 2})
    await store.add_figures("b", 1, {SUCCEEDED: 4})
    clock.advance(10)
    await store.add_figures("a", 2, {SUCCEEDED: 1})
    page = await store.series(10, 0, 1 << 60)
    assert page.now == clock.now()
    assert page.buckets == {
        (first, "work"): attempts(7),
        (first, "other"): attempts(failed=1),
        (first, ALL): {**attempts(7, 1), STALE_WRITES: {"": 2}},
        (first + 10 * SECOND, "work"): attempts(1),
        (first + 10 * SECOND, ALL): attempts(1),
    }


async def test_a_write_that_is_repeated_is_counted_once(store: Store) -> None:
    for _ in range(3):
        await store.add_figures("a", 1, {SUCCEEDED: 3})
    assert [*(await counted(store)).values()] == [attempts(3), attempts(3)]


@pytest.mark.parametrize("step", STEPS)
async def test_folding_changes_nothing_that_is_read(store: Store, clock: ManualClock, step: Step) -> None:
    for number in range(1, 8):
        await store.add_figures("a", number, {SUCCEEDED: number, FAILED: 1})
        await store.keep_sample(Sample(clock.now(), {"work": Load(due=number, running=1, oldest_due=number)}))
        clock.advance(7)
    before = await store.series(step, 0, 1 << 60)
    assert await store.fold_series() == 14
    assert await store.fold_series() == 0
    assert await store.series(step, 0, 1 << 60) == before
    await store.add_figures("a", 8, {SUCCEEDED: 1})
    assert await store.fold_series() == 1
    after = await counted(store, step)
    assert sum(counts.get(ATTEMPTS, {}).get("succeeded", 0) for (_, name), counts in after.items() if name == ALL) == sum(range(8)) + 1


async def test_every_step_has_the_same_sums(store: Store, clock: ManualClock) -> None:
    for number in range(1, 50):
        await store.add_figures("a", number, {SUCCEEDED: 1})
        clock.advance(61)
        if number % 7 == 0:
            await store.fold_series()
    for step in STEPS:
        buckets = await counted(store, step, "work")
        assert sum(counts[ATTEMPTS]["succeeded"] for (_, name), counts in buckets.items() if name == "work") == 49
        assert all(at % (step * SECOND) == 0 for at, _ in buckets)


async def test_one_handler_is_read_with_all_together_and_without_the_others(store: Store) -> None:
    await store.add_figures("a", 1, {SUCCEEDED: 3, FAILED: 1})
    for _ in range(2):
        assert {name for _, name in await counted(store, 10, "work")} == {"work", ALL}
        await store.fold_series()


async def test_a_span_has_the_buckets_that_begin_in_it(store: Store, clock: ManualClock) -> None:
    first = bucket_of(clock.now(), 10)
    for number in range(1, 5):
        await store.add_figures("a", number, {STALE: 1})
        clock.advance(10)
    for _ in range(2):
        page = await store.series(10, first + 10 * SECOND, first + 25 * SECOND)
        assert sorted(at for at, _ in page.buckets) == [first + 10 * SECOND, first + 20 * SECOND]
        await store.fold_series()


async def test_buckets_are_removed_after_their_time_and_longer_ones_stay(store: Store, clock: ManualClock) -> None:
    await store.add_figures("a", 1, {SUCCEEDED: 5})
    await store.fold_series()
    kept = {step: KEPT[step] for step in STEPS}
    assert kept == {10: HOUR, 300: 48 * HOUR, 3600: 92 * DAY}
    number = 1
    for seconds, left in [(3_500, {10, 300, 3600}), (200, {300, 3600}), (2 * 86_400, {3600}), (91 * 86_400, set())]:
        clock.advance(seconds)
        number += 1
        await store.add_figures("a", number, {STALE: 1})
        await store.fold_series()
        assert {step for step in STEPS if await counted_of(store, step, "work")} == left


async def counted_of(store: Store, step: Step, handler: str) -> int:
    buckets = await counted(store, step, handler)
    return sum(counts[ATTEMPTS]["succeeded"] for (_, name), counts in buckets.items() if name == handler)


async def test_a_clock_that_is_set_back_neither_loses_nor_doubles_counts(store: Store, clock: ManualClock) -> None:
    start = clock.now()
    await store.add_figures("a", 1, {SUCCEEDED: 1})
    clock.advance(3_000)
    await store.add_figures("a", 2, {SUCCEEDED: 10})
    await store.fold_series()
    clock.set(start)
    await store.add_figures("a", 3, {SUCCEEDED: 100})
    await store.fold_series()
    assert (await counted(store, 10, "work"))[bucket_of(start, 10), "work"] == attempts(101)
    for step in STEPS:
        assert await counted_of(store, step, "work") == 111


async def test_a_store_that_was_not_written_to_is_not_folded(store: Store) -> None:
    assert await store.fold_series() == 0
    await store.add_figures("a", 1, {})
    assert await store.fold_series() == 0


async def test_processes_that_write_while_others_fold_lose_and_double_nothing(store: Store, another: Another, clock: ManualClock) -> None:
    stores = [store, await another(), await another()]

    async def count(index: int, at: Store) -> None:
        for number in range(1, 21):
            await at.add_figures(f"process {index}", number, {SUCCEEDED: 1})

    async def fold(at: Store) -> None:
        for _ in range(20):
            await at.fold_series()

    await asyncio.gather(*(count(index, stores[index % 3]) for index in range(6)), *(fold(at) for at in stores))
    assert await counted_of(store, 10, "work") == 120
    await store.fold_series()
    assert [await counted_of(store, step, "work") for step in STEPS] == [120, 120, 120]


FOLDING = """
import asyncio, sys
import duetime.store.{engine}.series as series
from duetime.store.open import store_from_url

calls, fold_step = 0, series.folded

def folded(*arguments):  # the buckets of the first step are written when it is called for the second
    global calls
    calls += 1
    if calls == 2:
        print("in the middle", flush=True)
        sys.stdin.readline()
    return fold_step(*arguments)

series.folded = folded

async def main():
    store = store_from_url(sys.argv[1])
    await store.open()
    await store.fold_series()
    await store.close()

asyncio.run(main())
"""


async def folding_process(url: str) -> asyncio.subprocess.Process:
    """Return a process that folds and stands still in the middle of it, until it reads a line."""
    program = FOLDING.format(engine="sqlite" if url.startswith("sqlite") else "postgres")
    pipe = asyncio.subprocess.PIPE
    folding = await asyncio.create_subprocess_exec(sys.executable, "-c", program, url, cwd=ROOT, stdin=pipe, stdout=pipe)
    assert folding.stdout is not None
    assert await asyncio.wait_for(folding.stdout.readline(), PATIENCE) == b"in the middle\n"
    return folding


@pytest.mark.slow
async def test_a_process_that_is_killed_while_it_folds_changes_nothing(
    kind: StoreKind, store: Store, another: Another, tmp_path: Path
) -> None:
    await store.add_figures("a", 1, {SUCCEEDED: 5})
    await store.fold_series()
    await store.add_figures("a", 2, {SUCCEEDED: 7})
    folding = await folding_process(kind.url(tmp_path))
    folding.send_signal(signal.SIGKILL)
    await folding.wait()
    assert [await counted_of(store, step, "work") for step in STEPS] == [12, 12, 12]
    assert await store.fold_series() == 1
    assert [await counted_of(store, step, "work") for step in STEPS] == [12, 12, 12]


# ---- samples ----


async def test_a_sample_says_what_waits_and_runs_by_handler(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.add([new_task(), new_task(), new_task(handler="other", delay=60 * SECOND)])
    await worker.take_one()
    clock.advance(5)
    sample = await store.sample()
    assert sample == Sample(clock.now(), {"work": Load(due=1, running=1, oldest_due=5 * SECOND), "other": Load(later=1)})
    assert sample.total == Load(due=1, later=1, running=1, oldest_due=5 * SECOND)


async def test_a_sample_counts_tasks_of_former_names_under_the_present_one(store: Store) -> None:
    await store.add([new_task(handler="former"), new_task(handler="work")])
    await store.declare([Declaration(name="work", aliases=("former",))])
    assert {name: load.due for name, load in (await store.sample()).handlers.items()} == {"work": 2}


async def test_the_last_sample_is_remembered(store: Store, clock: ManualClock) -> None:
    assert await store.last_sample() is None
    for due in (3, 4):
        sample = Sample(clock.advance(10), {"work": Load(due=due)})
        await store.keep_sample(sample)
        assert await store.last_sample() == sample
        assert (await store.series(10, 0, 1)).last == sample


async def test_a_handler_that_has_no_tasks_any_more_is_named_once(store: Store, clock: ManualClock) -> None:
    for handlers in ({"work": Load(due=3), "other": Load(due=1)}, {"other": Load(due=1)}, {"other": Load(due=2)}):
        await store.keep_sample(Sample(clock.advance(10), handlers))
    named = [(at, name) for at, name in sorted(await counted(store)) if name == "work"]
    assert [at for at, _ in named] == [bucket_of(clock.now(), 10) - 20 * SECOND, bucket_of(clock.now(), 10) - 10 * SECOND]


async def test_of_two_samplers_one_takes_the_samples_and_the_other_follows_when_it_stops(
    store: Store, another: Another, clock: ManualClock
) -> None:
    alarms = Alarms()
    one, two = Sampler(store, alarms), Sampler(await another(), alarms)
    await store.add([new_task()])
    assert await one.sample() is None
    waits = await two.sample()
    assert waits is not None
    assert waits > 0
    assert (await store.duties())["sampler"].granted
    clock.advance(10)
    assert await one.sample() is None
    clock.advance(30)  # longer than the lease: `one` is gone
    assert await two.sample() is None
    samples = {at: counts["samples"]["sum"] for (at, name), counts in (await counted(store)).items() if name == ALL}
    start = bucket_of(clock.now(), 10)
    assert samples == {start - 40 * SECOND: 1, start - 30 * SECOND: 1, start: 1}
    alarms.close()


async def test_samples_of_two_processes_at_once_do_not_change_the_average(store: Store, another: Another, clock: ManualClock) -> None:
    for at in (store, await another()):
        await at.keep_sample(Sample(clock.now(), {"work": Load(due=4)}))
    (counts,) = [counts for (_, name), counts in (await counted(store)).items() if name == ALL]
    assert counts["due"]["sum"] / counts["samples"]["sum"] == 4


async def test_an_idle_store_is_neither_sampled_nor_leased(store: Store, worker: Worker, clock: ManualClock) -> None:
    alarms = Alarms()
    sampler = Sampler(store, alarms)
    await store.add([new_task(delay=DAY)])
    await sampler.sample()
    kept = await store.last_sample()
    assert kept is not None
    assert kept.total.later == 1
    leases = await store.duties()
    for _ in range(5):
        clock.advance(60)
        await sampler.sample()
    assert await store.last_sample() == kept
    assert (await store.duties())["sampler"].until_at == leases["sampler"].until_at
    assert len([1 for _, name in await counted(store) if name == ALL]) == 1
    await store.add([new_task()])
    await sampler.sample()
    assert await store.last_sample() != kept
    alarms.close()


async def test_a_process_that_begins_takes_its_first_sample_in_the_next_bucket(store: Store) -> None:
    alarms = Alarms()
    sampler = Sampler(store, alarms)
    await store.add([new_task()])
    pause = await sampler.run_once()
    assert pause is not None
    assert 0 < pause <= 11
    assert await store.last_sample() is None
    await sampler.run_once()
    assert await store.last_sample() is not None
    alarms.close()
