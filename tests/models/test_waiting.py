"""The protocols of steps as models, walked in every order of events, and broken on purpose.

Does a suspended task go on once what it waits for has come, whoever dies meanwhile; and can an attempt that is not the newest any more
save a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.models.exploring import Found, explore

# ---- a wait: signal, time-out, cancel, and the looks that bring them together ----


class Wait(NamedTuple):
    """A task whose attempt has opened a wait, and suspends itself.

    `match` is a transaction under way that gives it the signal: what it has seen of the task, which it locks if it is held. `ends` counts
    how often the wait was ended.
    """

    task: str = "runs"  # held, due, cancelled
    wait: str = "open"  # done, late
    signal: str = "none"  # free, taken
    match: str = ""
    look: bool = False  # the worker owes a look after its settle
    sent_look: bool = False  # the sender owes one after its commit
    ends: int = 0
    deaths: int = 0


def waiting(broken: str = "", *, dies: bool = False, duty: bool = True, late: bool = True, cancels: bool = False) -> Found[Wait]:
    """Who sends looks after its commit, and who suspends looks after its own; both lock the wait, and read the task only then."""

    def freed(state: Wait) -> Wait:
        return state._replace(task="due") if state.task == "held" else state

    def steps(state: Wait) -> Iterator[tuple[str, Wait]]:
        locked = state.match != ""
        if state.signal == "none":
            yield "a signal is sent", state._replace(signal="free", sent_look=True)
        if (state.sent_look or duty) and not locked and state.wait == "open" and state.signal == "free":
            yield "a match begins", state._replace(match="held" if state.task == "held" else "not held", sent_look=False)
        if state.sent_look and state.wait != "open":
            yield "the sender finds nobody", state._replace(sent_look=False)
        if locked:
            done = state._replace(match="", wait="done", signal="taken", ends=state.ends + 1)
            yield "the match commits", freed(done) if state.match == "held" else done
        if state.task == "runs":
            yield "the attempt suspends", state._replace(task="held", look=broken != "no look")
        if state.look and (not locked or broken == "a look locks nothing"):
            looked = state._replace(look=False)
            yield "the worker looks", freed(looked) if state.wait != "open" else looked
        if dies and (state.look or state.sent_look):
            yield "everybody dies who owes a look", state._replace(look=False, sent_look=False, deaths=1)
        if late and state.wait == "open" and (not locked or broken == "a time-out locks nothing"):
            yield "the duty ends the wait as late", freed(state._replace(wait="late", ends=state.ends + 1))
        if duty and state.task == "held" and state.wait != "open":
            yield "the duty frees who is left behind", freed(state)
        if cancels and state.task == "held" and state.match != "held":
            yield "it is cancelled", state._replace(task="cancelled")

    def wrong(state: Wait) -> bool:
        return state.ends > 1 or (state.task == "due" and state.wait == "open")

    return explore(Wait(), steps, wrong=wrong, unfinished=lambda state: state.task == "held" and state.signal != "none")


@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.parametrize("cancels", [True, False])
def test_who_waits_for_a_signal_goes_on_once(dies: bool, cancels: bool) -> None:
    found = waiting(dies=dies, cancels=cancels)
    assert (found.wrong, found.stuck) == (None, None)


def test_the_looks_alone_suffice_if_nobody_dies() -> None:
    found = waiting(duty=False, late=False)
    assert (found.wrong, found.stuck) == (None, None)


def test_without_the_duty_a_death_before_a_look_makes_somebody_wait_for_ever() -> None:
    found = waiting(dies=True, duty=False, late=False)
    assert "everybody dies who owes a look" in (found.stuck or ())


@pytest.mark.parametrize("broken", ["no look", "a look locks nothing", "a time-out locks nothing"])
def test_each_rule_of_waiting_is_needed(broken: str) -> None:
    found = waiting(broken, duty=False, late=broken.startswith("a time-out"))
    assert found.wrong or found.stuck


# ---- steps of an attempt that was taken for dead ----


class Steps(NamedTuple):
    """Two attempts at one step. Each is `begins`, `ran` (its code has run), `checked` (it has asked whether it is the newest), `over`.

    `saved` is the attempt whose value is stored, `used` what each attempt goes on with, `again` whether code of a saved step ran again.
    """

    newest: int = 1
    first: str = "begins"
    second: str = "waits"
    saved: int = 0
    used: tuple[int, ...] = ()
    again: bool = False


def stepping(broken: str = "") -> Found[Steps]:
    """An attempt reads what is saved, runs the code of the step if nothing is, and saves it under a lock of its claim."""

    def steps(state: Steps) -> Iterator[tuple[str, Steps]]:
        for number, where in ((1, state.first), (2, state.second)):

            def become(what: str, state: Steps = state, number: int = number) -> Steps:
                return state._replace(first=what) if number == 1 else state._replace(second=what)

            newest = state.newest == number
            match where:
                case "begins" if state.saved and broken != "nothing is read":
                    yield f"{number} finds it saved", become("over", state._replace(used=(*state.used, state.saved)))
                case "begins":
                    yield f"{number} runs it", become("ran", state._replace(again=state.again or bool(state.saved)))
                case "ran" if broken == "checked before, without a lock":
                    yield f"{number} asks", become("checked" if newest else "over")
                case "ran" | "checked" if newest or broken == "no fence" or where == "checked":
                    yield f"{number} saves it", become("over", state._replace(saved=number, used=(*state.used, number)))
                case "ran":
                    yield f"{number} is refused", become("over")
        if state.newest == 1:
            yield "1 is taken for dead", state._replace(newest=2, second="begins")

    return explore(
        Steps(),
        steps,
        wrong=lambda state: state.again or len(set(state.used)) > 1 or bool(state.used and state.saved not in state.used),
        unfinished=lambda state: not state.saved,
    )


def test_all_attempts_go_on_with_the_same_value() -> None:
    found = stepping()
    assert (found.wrong, found.stuck) == (None, None)


@pytest.mark.parametrize("broken", ["no fence", "checked before, without a lock", "nothing is read"])
def test_each_rule_of_steps_is_needed(broken: str) -> None:
    assert stepping(broken).wrong
