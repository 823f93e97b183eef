"""The long version: `make chaos`, or `make chaos ARGS="--scale 0.02"` for a fiftieth of it.

Storms one after the other over one store, each with workers and a journal of its own, until all that was asked for has been done.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.chaos.connections import Crowd, crowd
from tests.chaos.fleet import Fleet
from tests.chaos.ground import Ground
from tests.chaos.pooling import Pooling
from tests.chaos.storm import LEASE, WORKERS, Plan, Report, Storm
from tests.servers import running
from tests.servers.fixtures import NEWEST
from tests.servers.installations import installations

STORMS = 50
# Fifty times this is 1,000,000 tasks, 1,000 kills, 200 freezes, 200 crashes of the server and 500 cuts.
EACH = Plan(
    tasks=20_000, kills=20, freezes=4, crashes=3, long_outages=1, cuts=8, half_opens=2, lost_claims=5, lost_settles=5, steps=4, gates=1
)
FAIL_OVER_EVERY = 5
CONNECTIONS, FEWER_CONNECTIONS, ACTIVE = 10_000, 1_000, 100
MUST_BE_ZERO = {"lost": "lost", "overlap": "overlapping", "early": "early", "stale": "stale writes accepted"}


def plans(scale: float) -> Iterator[Plan]:
    """Give as many storms as the scale asks for; below a fiftieth a single one that is smaller."""
    share = min(1.0, scale * STORMS)
    smaller = {name: max(1, round(getattr(EACH, name) * share)) for name in Plan.__dataclass_fields__ if getattr(EACH, name)}
    for number in range(max(1, round(scale * STORMS))):
        yield replace(EACH, **smaller, fail_overs=int(number % FAIL_OVER_EVERY == 0))


async def storms(scale: float, seed: int, server: str, folder: Path) -> tuple[list[Report], int]:
    """Run all storms; give what came of each, and how many tasks the store knows in the end."""
    reports: list[Report] = []
    many = list(plans(scale))
    async with Ground(name=server) as ground:
        for number, plan in enumerate(many, 1):
            began = time.monotonic()
            storm_folder = folder / f"storm-{number}"
            async with Fleet(storm_folder, url=ground.url, look_url=ground.look_url) as fleet:
                report = await Storm(ground, fleet, plan, seed=seed + number).run()
                counted = sum(each.count for each in (await fleet.store.counts()).finals)
            reports.append(report)
            broken = dict(report.broken) or "nothing broken"
            took = time.monotonic() - began
            print(
                f"storm {number} of {len(many)}: {report.tasks:,} tasks, {report.attempts:,} attempts in {took:.0f} s: {broken}", flush=True
            )
            for violation in report.violations[:20]:
                print(f"  {violation}  (seed {seed + number}, journal in {storm_folder})", flush=True)
    return reports, counted


async def pooled(seed: int, folder: Path) -> tuple[str, list[str]]:
    """Kill workers whose store is behind a pooler (T16); give how it was played and what broke."""
    chance = random.Random(seed)
    async with Pooling() as pooling, Fleet(folder / "pooled", url=pooling.url, look_url=pooling.look_url) as fleet:
        await fleet.start_some(2, "--lease", f"{LEASE}s")
        for _ in range(4):
            await fleet.submit(fleet.new(chance.choice(["quick", "threaded"]), seconds=chance.uniform(0, 0.3)) for _ in range(50))
            await asyncio.sleep(0.5)
            fleet.alive[0].kill()
            await fleet.start("--lease", f"{LEASE}s")
        await fleet.finish()
        return pooling.how, await fleet.violations()


async def crowded(scale: float, folder: Path) -> Crowd:
    """Open many connections to one server; a small part of the whole run opens fewer."""
    wanted = CONNECTIONS if scale >= 0.1 else FEWER_CONNECTIONS
    print(f"{wanted:,} connections to one server, {ACTIVE} of which submit", flush=True)
    return await crowd(folder, wanted - ACTIVE, ACTIVE, seconds=10.0)


def percentile(values: Sequence[float], share: float) -> str:
    if not values:
        return "-"
    ordered = sorted(values)
    return f"{ordered[min(len(ordered) - 1, int(share * len(ordered)))]:.1f} s"


def figures(values: Sequence[float]) -> str:
    """Give how a number of durations are spread."""
    return f"p50 {percentile(values, 0.5)}, p99 {percentile(values, 0.99)}, most {percentile(values, 1.0)} (of {len(values):,})"


def summary(reports: Sequence[Report], counted: int, how: str, pooled_violations: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Give the lines of the table."""
    did: Counter[str] = sum((report.faults for report in reports), Counter())
    broken: Counter[str] = sum((report.broken for report in reports), Counter())

    def total(name: str) -> int:
        return sum(getattr(report, name) for report in reports)

    share = total("busy_kills") / max(1, did["kill"])
    crashes, cuts = did["crash"] + did["long outage"], did["cut"] + did["half-open"]
    yield "tasks acknowledged", f"{total('tasks'):,} (the store counts {counted:,} as final)"
    yield "attempts", f"{total('attempts'):,}"
    yield "workers killed (SIGKILL)", f"{did['kill']:,}, {share:.0%} of them in the middle of attempts"
    yield "workers frozen past the lease", f"{did['frozen']:,}, two at once (lease {LEASE:g} s)"
    yield "server killed (kill -9)", f"{crashes:,}, {did['long outage']:,} of them down for longer than a lease"
    yield "cuts", f"{cuts:,} of {total('connections_cut'):,} connections, {did['half-open']:,} of the cuts half-open"
    yield "lost replies", f"{did['lost claim']:,} claims, {did['lost settle']:,} settles; {total('given_back'):,} tasks given back"
    yield "clocks", f"the store's stepped {did['step']:,} times by ±1 h; half of the {WORKERS} workers' off by ±10 min"
    yield "fail-overs", f"{did['fail-over']:,}; {total('gone'):,} acknowledged tasks gone with the old server"
    yield "gates", f"{did['gate']:,}, {did['gate not confirmed']:,} of them not confirmed in time"
    yield "cancelled, rolled back", f"{total('cancelled'):,}, {total('rolled_back'):,}"
    yield "T16", f"{how}: {len(pooled_violations)} violations"
    for rule, name in MUST_BE_ZERO.items():
        yield name, f"{broken[rule]:,}"
    others = [f"{rule} {count}" for rule, count in broken.items() if rule not in MUST_BE_ZERO]
    yield "other violations", ", ".join(others) or "0"
    # where the server was neither down nor set meanwhile
    yield "taken back after a kill", figures([seconds for report in reports for seconds in report.taken_back])
    yield "running again after a kill", figures([seconds for report in reports for seconds in report.recoveries])


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="how much of the full size (default: 1)")
    parser.add_argument("--seed", type=int, default=None, help="repeat the faults of an earlier run, as far as chance goes")
    parser.add_argument("--server", default=NEWEST, choices=list(installations()), help=f"which PostgreSQL (default: {NEWEST})")
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="duetime-chaos-"))
    print(f"seed {seed}, {options.server}, scale {options.scale:g}, journals in {folder}", flush=True)
    try:
        reports, counted = asyncio.run(storms(options.scale, seed, options.server, folder))
        how, pooled_violations = asyncio.run(pooled(seed, folder))
        met = asyncio.run(crowded(options.scale, folder))
    finally:
        running.end()
    lines = [*summary(reports, counted, how, pooled_violations), *met.lines()]
    width = max(len(name) for name, _ in lines)
    print()
    for name, value in lines:
        print(f"{name:<{width}}  {value}")
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes")
    return 1 if pooled_violations or any(report.violations for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
