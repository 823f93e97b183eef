"""Whatever happens to a schedule, every planned instant becomes one task or a part of one skip. (Promise 8)"""

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, note, settings
from hypothesis import strategies as some
from msgspec.structs import replace

from duetime.clock import SECOND, Instant
from duetime.model import steering
from duetime.model.firing import MOST_AT_ONCE, Step, StepBuilder, single_step, step, with_ends
from duetime.model.rules import AfterEnd, At, Cron, Every, Plan, Rule, Window, plan_of
from duetime.model.schedule import MOST_RUNS, Ends, LastRun, ScheduleFacts, ScheduleSpec, Skip
from duetime.model.skips import MOST_SINGLE
from duetime.model.task import NewTask, State

START = 1_800_000_000 * SECOND
# until nothing is due any more: the most that a policy below makes up for, then what is on time within the longest grace, then the ends
MOST_STEPS = (100_000 + 601) // MOST_AT_ONCE + 10

rules = some.sampled_from(
    [
        Every(1),
        Every(7, phase=3),
        Every(60),
        Every(3_600),
        Cron("*/5 * * * *"),
        Cron("*/10 * * * * *"),
        Cron("30 2 * * *", tz="Europe/Berlin"),
        Window(600, "08:00", "18:00", days="mon-fri", tz="America/New_York"),
        At([datetime(2027, 1, 15, 8, tzinfo=UTC) + timedelta(seconds=number * number) for number in range(1, 60)]),
        Every(60) | Cron("*/7 * * * *"),
    ]
)
policies = some.fixed_dictionaries(
    {
        "missed": some.sampled_from(
            [
                "skip",
                "latest",
                "earliest",
                "all",
                "all within 10m",
                "all at most 7",
                "all within 1h at most 90 at 3/s",
                "all at most 100000",
            ]
        ),
        "overlap": some.sampled_from(["skip", "queue one", "queue all", "cancel", "allow", "allow 3"]),
        "grace": some.sampled_from([0.0, 0.5, 10.0, 600.0]),
        "jitter": some.sampled_from([0.0, 30.0]),
        "pause_after": some.sampled_from([None, 1, 3]),
    }
)
spans = some.one_of(
    some.integers(0, 3 * SECOND),
    some.integers(0, 20 * 60 * SECOND),
    some.integers(0, 2 * 86_400 * SECOND),
    some.integers(0, 120).map(lambda number: number * SECOND),
)
events = some.one_of(
    some.tuples(some.just("step"), some.just(0)),
    some.tuples(some.just("end"), some.integers(0, 5)),
    some.tuples(some.just("fail"), some.integers(0, 5)),
    some.tuples(some.just("prune"), some.just(0)),
    some.tuples(some.just("pause"), some.just(0)),
    some.tuples(some.just("resume"), some.booleans()),
    some.tuples(some.just("edit"), rules),
    some.tuples(some.just("trigger"), some.just(0)),
    some.tuples(some.just("back"), some.integers(0, 90 * SECOND)),
)


class Life:
    """One schedule with everything that became of it, and all that each of its plans had planned."""

    def __init__(self, spec: ScheduleSpec) -> None:
        self.plan = plan_of(spec.rule)
        self.now = START
        self.record = replace(steering.put("life", spec, self.plan, START, id="life").record, version=1)
        self.planned: list[Instant] = []  # by plans that are gone
        self.since = START  # when the present plan began
        self.tasks: list[NewTask[object]] = []
        self.skips: list[Skip] = []
        self.plans: list[tuple[Instant, Instant, Plan]] = []
        self.ended: list[LastRun] = []
        self.gone: list[str] = []

    def take(self, chosen: Step) -> None:
        """Store a step as a store would, and check what holds for each."""
        before, after = self.record, chosen.record
        assert after.state.cursor >= before.state.cursor, "the cursor never goes back"
        assert len(after.state.runs) <= MOST_RUNS
        assert len(chosen.skips) <= MOST_AT_ONCE + 2 * MOST_SINGLE + 2
        self.tasks += chosen.tasks
        self.skips += chosen.skips
        self.record = replace(after, version=before.version + 1)

    def step(self) -> Step:
        facts = ScheduleFacts(self.plan, Ends(tuple(self.ended), tuple(self.gone)))
        state = with_ends(self.record.state, facts.ends, self.now)
        short = single_step(self.record, state, self.plan, self.now)
        assert short is None or short == StepBuilder(self.record, state, self.plan, self.now).build(), "the short way does the same"
        chosen = step(self.record, facts, self.now)
        self.ended, self.gone = [], []
        assert len(chosen.tasks) <= MOST_AT_ONCE, "a step is bounded"
        for task in chosen.tasks:
            assert self.record.state.cursor < (task.planned_at or 0) <= chosen.record.state.cursor
        self.take(chosen)
        return chosen

    def settle(self, number: int, state: State) -> None:
        over = {run.task for run in self.ended} | set(self.gone)
        live = [run for run in self.record.state.runs if run.task not in over][: number or None]
        self.ended += [LastRun(task=run.task, state=state, planned_at=run.planned_at, finished_at=self.now) for run in live]

    def edit(self, rule: Rule) -> None:
        if rule == self.record.spec.rule:
            return
        plan = plan_of(rule)
        spec = replace(self.record.spec, rule=rule)
        chosen = steering.put("life", spec, plan, self.now, id="", old=self.record, old_plan=self.plan)
        self.take(chosen)
        self._close(self.record.state.cursor)
        self.plan = plan

    def _close(self, until: Instant) -> None:
        self.planned += self.plan.between(self.since, until, 1_000_000)
        self.plans.append((self.since, until, self.plan))
        self.since = until

    def catch_up(self) -> None:
        """Go on until nothing is due."""
        self.take(steering.resume(self.record, self.plan, self.now))
        for _ in range(MOST_STEPS):
            if (self.record.next_at is None or self.record.next_at > self.now) and not self.record.state.runs:
                break
            before = self.record
            self.step()
            if self.record.state.paused is not None:
                self.take(steering.resume(self.record, self.plan, self.now, catch_up=True))
            self.settle(0, State.SUCCEEDED)
            assert before != self.record
        else:
            raise AssertionError(f"still due after {MOST_STEPS} steps: {self.record}")
        self._close(self.record.state.cursor)

    def accounted(self) -> None:
        """Compare what was planned with what became of it."""
        own = [task for task in self.tasks if (task.meta or {}).get("duetime.kind") is None]
        stretches = sorted(
            [(task.planned_at or 0, task.planned_at or 0, 1) for task in own] + [(s.planned_at, s.until_at, s.count) for s in self.skips]
        )
        for (_, end, _), (start, _, _) in itertools.pairwise(stretches):
            assert end < start, "no instant is accounted for twice"
        assert sum(count for _, _, count in stretches) == len(self.planned)
        planned = set(self.planned)
        assert all(start in planned and end in planned for start, end, _ in stretches)
        assert len(own) == self.record.state.fired == len({task.id for task in own})
        assert sum(skip.count for skip in self.skips) == self.record.state.missed


@pytest.mark.slow
@settings(max_examples=500)
@example(
    rule=Every(1),
    options={"missed": "all at most 100000", "overlap": "queue all", "grace": 600.0},
    happened=[(2 * 86_400 * SECOND, ("back", 0))] * 2,
)
@given(rule=rules, options=policies, happened=some.lists(some.tuples(spans, events), min_size=1, max_size=20))
def test_every_planned_instant_is_accounted_for_once(
    rule: Rule, options: dict[str, object], happened: list[tuple[int, tuple[str, object]]]
) -> None:
    life = Life(ScheduleSpec(handler="h", rule=rule, **options))  # type: ignore[arg-type]
    for passed, (kind, value) in happened:
        life.now += passed
        match kind, value:
            case "back", int(span):
                life.now = max(START, life.now - span)
            case "step", _:
                life.step()
            case "end", int(number):
                life.settle(number, State.SUCCEEDED)
            case "fail", int(number):
                life.settle(number, State.FAILED)
            case "prune", _:
                life.gone += [run.task for run in life.record.state.runs[:1] if run.task not in {end.task for end in life.ended}]
            case "pause", _:
                life.take(steering.pause(life.record, life.plan, life.now))
            case "resume", catch_up:
                life.take(steering.resume(life.record, life.plan, life.now, catch_up=bool(catch_up)))
            case "edit", other:
                life.edit(other)  # type: ignore[arg-type]
            case "trigger", _ if len(life.record.state.runs) < MOST_RUNS:
                life.take(steering.trigger(life.record, ScheduleFacts(life.plan), life.now))
    life.now = max(life.now, life.record.state.cursor)
    life.catch_up()
    note(f"{life.record}")
    life.accounted()


@pytest.mark.slow
@settings(max_examples=400)
@given(
    rule=some.sampled_from([AfterEnd(5), AfterEnd(90) | Cron("*/10 * * * *"), AfterEnd(5) | AfterEnd(60), AfterEnd(3_600) | Every(7)]),
    options=policies,
    happened=some.lists(some.tuples(spans, events.filter(lambda event: event[0] != "edit")), min_size=1, max_size=20),
)
def test_a_rule_that_waits_for_ends_never_stands_still(
    rule: Rule, options: dict[str, object], happened: list[tuple[int, tuple[str, object]]]
) -> None:
    life = Life(ScheduleSpec(handler="h", rule=rule, **options))  # type: ignore[arg-type]
    for passed, (kind, value) in happened:
        life.now += passed
        match kind, value:
            case "back", int(span):
                life.now = max(START, life.now - span)
            case "step", _:
                life.step()
            case (("end" | "fail"), int(number)):
                life.settle(number, State.SUCCEEDED if kind == "end" else State.FAILED)
            case "pause", _:
                life.take(steering.pause(life.record, life.plan, life.now))
            case "resume", catch_up:
                life.take(steering.resume(life.record, life.plan, life.now, catch_up=bool(catch_up)))
        if life.record.state.paused is None:
            assert life.record.next_at is not None, "there is always something to look for"
    life.now = max(life.now, life.record.state.cursor)
    life.take(steering.resume(life.record, life.plan, life.now))
    fired, looks = len(life.tasks), 0
    while len(life.tasks) == fired:
        looks += 1
        assert looks < 100, "it goes on"
        life.take(steering.resume(life.record, life.plan, life.now))  # failed runs may have paused it
        assert life.record.next_at is not None
        life.settle(0, State.SUCCEEDED)
        life.now = max(life.now, life.record.next_at)
        life.step()
    instants = [task.planned_at or 0 for task in life.tasks]
    assert instants == sorted(set(instants)), "instants strictly grow"
    ids = [task.id for task in life.tasks]
    assert len(ids) == len(set(ids))


def test_the_short_way_is_taken_for_one_occurrence_in_time() -> None:
    life = Life(ScheduleSpec(handler="work", rule=Every(60), overlap="allow"))
    taken = []
    for _ in range(3):
        life.now = life.record.next_at or 0
        taken.append(single_step(life.record, life.record.state, life.plan, life.now))
        life.step()
    assert None not in taken
    life.now += 3_600 * SECOND
    assert single_step(life.record, life.record.state, life.plan, life.now) is None, "many were missed"
