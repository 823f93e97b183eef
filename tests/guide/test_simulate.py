"""How to find what handlers do twice: `duetime.testing.simulate` runs them on workers that crash, in virtual time."""

import asyncio
import logging
from datetime import timedelta

import pytest

from duetime import App, Context, InvalidValue, Node, Plan, RetryPolicy
from duetime.testing import NeverEnded, NotIdempotent, Simulation, simulate

app = App("sqlite:////nowhere/to/be/found/payments.db")


class Gateway:
    """A stand-in for a payment service, which notes what it was asked to do."""

    def __init__(self, t: Simulation, *, knows_keys: bool) -> None:
        self.t = t
        self.knows_keys = knows_keys
        self.keys: set[str] = set()

    async def charge(self, order_id: int, key: str) -> None:
        await asyncio.sleep(0.2)
        if key not in self.keys:
            self.t.effect("charged", order_id)
            if self.knows_keys:
                self.keys.add(key)


@app.task(retry=RetryPolicy(tries=5, base=1))
async def charge_order(ctx: Context, order_id: int) -> None:
    await ctx.get(Gateway).charge(order_id, ctx.idempotency_key)


@app.task
def receipt(order_id: int) -> str:
    return f"receipt of {order_id}"


@app.task
async def waits_for_ever() -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


@app.schedule(every=60)
async def sweep() -> None:
    """Its tasks never end; nobody waits for them."""


async def some_orders(t: Simulation) -> None:
    for order_id in range(4):
        await charge_order.after(1800, order_id=order_id)


@app.task
async def count_stock(shelf: int) -> int:
    async with app.lock("stock", wait=60):
        await asyncio.sleep(0.1)
    return shelf + 1


@app.task(retry=RetryPolicy(tries=5, base=1))
async def onboard(ctx: Context, user: int) -> str:
    """A story with steps: it charges, pauses, waits for a signal, and calls another task."""
    await ctx.step("charge", ctx.get(Gateway).charge, user, f"{ctx.idempotency_key}-charge")
    await ctx.sleep("grace", timedelta(days=3))
    try:
        approved = await ctx.wait("approval", f"user-{user}-ok", bool, timeout=86_400)
    except TimeoutError:
        return "nobody approved"
    return f"{approved}, {await ctx.call('receipt', receipt.new(order_id=user))}"


@app.flow
def stocktaking(plan: Plan, shelf: int) -> Node[int]:
    first = plan.add(count_stock.new(shelf=shelf))
    return plan.add(count_stock.new(shelf=first.value))


def careless(t: Simulation) -> list[object]:
    return [Gateway(t, knows_keys=False)]


def careful(t: Simulation) -> list[object]:
    return [Gateway(t, knows_keys=True)]


def seed_that_charges_twice() -> NotIdempotent:
    with pytest.raises(NotIdempotent) as found:
        simulate(app, some_orders, resources=careless)
    return found.value


def test_an_effect_that_is_not_idempotent_is_found_with_its_seed_and_the_faults_that_it_needs() -> None:
    found = seed_that_charges_twice()
    assert found.name == "charged"
    assert "happened twice: first at" in str(found)
    assert "of charge_order (task " in str(found)
    first, second = found.__notes__
    assert f"seeds=[{found.seed}]" in first
    assert "worker" in first or "store" in first
    assert "effect: charged(" in second
    with pytest.raises(NotIdempotent) as again:
        simulate(app, some_orders, seeds=[found.seed], resources=careless)
    assert str(again.value) == str(found)


def test_an_effect_with_the_idempotency_key_happens_once_although_workers_die() -> None:
    done = simulate(app, some_orders, seeds=40, resources=careful)
    assert (done.seeds, done.effects) == (40, 160)
    assert done.tasks >= 160  # the schedule has some too
    assert done.deaths > 5


def test_no_event_loop_is_left_behind_by_workers_that_were_at_work_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(asyncio.DefaultEventLoopPolicy, "new_event_loop", lambda policy: made.append(policy))
    simulate(app, some_orders, seeds=40, resources=careful)
    assert made == []


def test_a_scenario_waits_for_results_moves_the_clock_and_asserts() -> None:
    async def scenario(t: Simulation) -> None:
        begin = t.now
        task = await receipt.after(3600, order_id=t.chance.randint(1, 9))
        await t.advance(hours=1)
        assert (await app.result(task)).startswith("receipt of")
        assert (t.now - begin).total_seconds() >= 3600
        await charge_order.after(600, order_id=7)
        await t.until_done()
        assert t.effects("charged") == [(7,)]

    simulate(app, scenario, seeds=20, resources=careful)


def test_flows_and_locks_are_those_of_the_simulated_store() -> None:
    async def scenario(t: Simulation) -> None:
        flow = await stocktaking.now(shelf=3)
        assert await app.result(flow, timeout=300) == 5
        assert (await app.flows.get(flow)).state == "succeeded"
        assert await app.locks.list() == []

    assert simulate(app, scenario, seeds=5).tasks == 10


def test_steps_and_signals_work_and_pauses_and_waits_take_no_time() -> None:
    async def scenario(t: Simulation) -> None:
        approved, forgotten = await onboard.now(user=7), await onboard.now(user=8)
        await app.signals.send("user-7-ok", True, keep=timedelta(days=7))
        await t.until_done()
        assert await app.result(approved) == "True, receipt of 7"
        assert await app.result(forgotten) == "nobody approved"

    assert simulate(app, scenario, seeds=20, resources=careful).effects == 40


def test_a_step_that_is_not_idempotent_is_found() -> None:
    """A worker dies between the effect of a step and its save."""

    async def scenario(t: Simulation) -> None:
        for user in range(4):
            await onboard.now(user=user)

    with pytest.raises(NotIdempotent, match="charged") as found:
        simulate(app, scenario, resources=careless)
    assert "save_steps" in found.value.__notes__[1]


def test_what_a_scenario_raises_carries_its_seed() -> None:
    async def scenario(t: Simulation) -> None:
        assert t.seed != 3, "we do not like three"

    with pytest.raises(AssertionError, match="we do not like three") as failed:
        simulate(app, scenario, seeds=10)
    assert "seeds=[3]" in failed.value.__notes__[0]
    assert "it fails by itself" in failed.value.__notes__[0]


def test_a_task_that_never_ends_is_named() -> None:
    async def scenario(t: Simulation) -> None:
        await waits_for_ever.options(timeout=10_000).now()

    with pytest.raises(NeverEnded, match="waits_for_ever"):
        simulate(app, scenario, seeds=[0])


def test_the_app_is_as_before_afterwards() -> None:
    before, url, level = app.client, app.url, logging.getLogger("duetime").propagate
    simulate(app, some_orders, seeds=1, resources=careful)
    assert (app.client, app.url, logging.getLogger("duetime").propagate) == (before, url, level)
    assert app.lifespan is None


async def test_it_has_an_event_loop_of_its_own_and_takes_an_app() -> None:
    with pytest.raises(RuntimeError, match="plain `def`"):
        simulate(app, some_orders)
    with pytest.raises(InvalidValue, match="takes an App"):
        simulate("app", some_orders)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="at least 1"):
        simulate(app, some_orders, seeds=0)
