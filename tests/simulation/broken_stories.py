"""Guards of steps, signals, merged submissions and reserved slots that are taken away on purpose."""

from functools import partial
from typing import Any

import msgspec

from duetime.duties.waits import Waits
from duetime.ids import token
from duetime.model import lifecycle, merging
from duetime.model import task as tasks
from duetime.model.outcome import Outcome
from duetime.model.steps import StepKind, child_id
from duetime.store.sqlite import steps
from duetime.store.sqlite.statements import SQL
from duetime.store.sqlite.submit import Submission
from duetime.targets import steps as attempts
from duetime.targets.steps import Stepper
from duetime.worker.queues import HandlerQueue
from tests.simulation.guards import GUARDS, Replacements, guard

stories = partial(guard, worlds="stories")

__all__ = ["GUARDS"]


# ---- steps ----


@stories("a saved step does not run again", "step")
def saved_steps_do_not_run_again() -> Replacements:
    begin = Stepper._begin

    async def forgetful(self: Stepper, name: str, kind: StepKind) -> Any:
        known = await begin(self, name, kind)
        return None if kind is StepKind.VALUE else known

    return [(Stepper, "_begin", forgetful)]


@stories("a pause counts from the first time on", "lost", "step")
def pauses_begin_once() -> Replacements:
    save = steps.save

    def anew(connection: Any, worker: str, step: Any, now: int) -> Any:
        if step.kind is StepKind.SLEEP:
            connection.execute("delete from duetime_step where kind = 'sleep'")
        return save(connection, worker, step, now)

    begin = Stepper._begin

    async def forgetful(self: Stepper, name: str, kind: StepKind) -> Any:
        known = await begin(self, name, kind)
        return None if kind is StepKind.SLEEP else known

    return [(steps, "save", anew), (Stepper, "_begin", forgetful)]


@stories("a pause or a wait uses up no try", "tries")
def pauses_use_up_no_try() -> Replacements:
    conclude = lifecycle.conclude

    def costly(running: Any, ended: Any, *args: Any, **options: Any) -> Any:
        settlement = conclude(running, ended, *args, **options)
        return msgspec.structs.replace(settlement, tries=running.tries + 1) if ended.outcome is Outcome.SUSPENDED else settlement

    return _everywhere("conclude", conclude, costly)


@stories("what an attempt calls has ids that follow from the task, the step and the place", "unknown", "step", "lost")
def calls_can_be_repeated() -> Replacements:

    def by_chance(parent: str, step: str, position: int, key: Any = None) -> str:
        return child_id(parent, f"{step} {token(4)}", position, key)

    return [(attempts, "child_id", by_chance)]


@stories("who was called is cancelled when the caller ends before", "orphan")
def orphans_are_cancelled() -> Replacements:
    async def look(self: Waits) -> int:
        looked = await self._store.look_at_waits()
        self._more = looked.more
        return looked.woken

    return [(Waits, "look", look)]


@stories("waits end at their time-out", "lost", "leak")
def waits_time_out() -> Replacements:
    return [(SQL, "late_waits", "select number, task from duetime_step where 0 and number = ? limit ?")]


# ---- signals ----


@stories("a signal reaches one wait only", "signal")
def signals_reach_one_wait() -> Replacements:
    return [(SQL, "take_signal", "update duetime_signal set looked = 1 where ? <> '' and number = ?")]


@stories("a wait gets a signal that came before it", "signal")
def signals_are_kept() -> Replacements:
    match = steps.match
    save = steps.save

    def blind(connection: Any, worker: str, step: Any, now: int) -> Any:
        steps.match = lambda connection, names, now: (0, None)
        try:
            return save(connection, worker, step, now)
        finally:
            steps.match = match

    return [(steps, "save", blind), (steps, "match", match)]


@stories("a second signal of a name and an id is the same one", "signal")
def repeated_signals_count_once() -> Replacements:
    write = steps.write_signal

    def another(signal: Any, now: int, *, looked: bool) -> tuple[object, ...]:
        return write(msgspec.structs.replace(signal, id=f"{signal.id} {token(4)}"), now, looked=looked)

    return [(steps, "write_signal", another)]


# ---- submissions that are merged ----


@stories("of submissions that are merged the newest arguments win", "merge")
def the_newest_arguments_win() -> Replacements:
    joined = tasks.joined

    def older(task: Any, waiting: Any, now: int) -> Any:
        found = joined(task, waiting, now)
        return None if found is None else msgspec.structs.replace(found, payload=waiting.payload)

    return _everywhere("joined", joined, older)


@stories("a repeated submission is counted once", "merge")
def repeats_are_counted_once() -> Replacements:
    join = merging.join

    def again(task_id: str, pace: Any, waiting: Any, started: bool, now: int) -> Any:
        return join(task_id, pace, waiting, started, now) or msgspec.structs.replace(waiting, submissions=waiting.submissions + 1)

    return [(tasks, "join", again)]


@stories("a throttled key begins once within its time", "merge")
def throttled_keys_begin_once() -> Replacements:
    async def nothing(self: Submission, task: Any) -> None:
        return None

    return [(Submission, "_answer_throttled", nothing)]


@stories("a debounced task waits until its key is quiet", "merge")
def debounced_tasks_wait() -> Replacements:
    return [(tasks, "due_at", lambda pace, merged, now: now)]


# ---- slots ----


@stories("slots that are reserved take no task of lower priority", "reserve")
def reserved_slots_are_kept() -> Replacements:
    init = HandlerQueue.__init__

    def without(self: HandlerQueue, spec: Any, *args: Any, **options: Any) -> None:
        init(self, msgspec.structs.replace(spec, reserve={}), *args, **options)

    return [(HandlerQueue, "__init__", without)]


def _everywhere(name: str, function: Any, replacement: Any) -> Replacements:
    """Replace a function in all modules that have imported it."""
    import sys

    modules = [module for each, module in sys.modules.items() if each.startswith("duetime.")]
    return [(module, name, replacement) for module in modules if getattr(module, name, None) is function]
