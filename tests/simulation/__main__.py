"""Run many seeds, or one as a timeline: `python -m tests.simulation --seeds 1000`, `python -m tests.simulation --seed 17`."""

import argparse
import gc
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

from tests.simulation.shrinking import shrunk
from tests.simulation.world import SHAPES, Outcome, Shape, plan, simulate

PORTION = 25  # seeds between two collections of garbage: collecting within a simulation takes a third of its time


class Portion(NamedTuple):
    """What came of some seeds. Times are in seconds: of virtual time, and of the processor."""

    seeds: int
    failed: list[int]
    tasks: int
    attempts: int
    virtual: float
    processor: float


def run(seeds: range, shape: Shape | None = None) -> Portion:
    """Run some seeds one after the other."""
    failed, tasks, attempts, virtual = [], 0, 0, 0.0
    began = time.process_time()
    gc.collect()
    gc.disable()
    try:
        for seed in seeds:
            outcome = simulate(plan(seed, shape))
            tasks, attempts, virtual = tasks + outcome.tasks, attempts + outcome.attempts, virtual + outcome.seconds
            if outcome.violations:
                failed.append(seed)
    finally:
        gc.enable()
    return Portion(len(seeds), failed, tasks, attempts, virtual, time.process_time() - began)


def portions(first: int, number: int) -> Iterator[range]:
    for start in range(first, first + number, PORTION):
        yield range(start, min(start + PORTION, first + number))


def total(some: Iterable[Portion]) -> Portion:
    seeds, failed, tasks, attempts, virtual, processor = zip(*some, strict=True)
    return Portion(sum(seeds), [seed for each in failed for seed in each], sum(tasks), sum(attempts), sum(virtual), sum(processor))


def figures(done: Portion, lasted: float) -> str:
    """Return what was simulated how fast."""
    busy = max(done.processor, 1e-9)
    return (
        f"{done.seeds:,} seeds in {lasted:.1f} s: {done.tasks:,} tasks with {done.attempts:,} attempts "
        f"in {done.virtual / 3600:.1f} virtual hours; "
        f"{done.tasks / busy:,.0f} task lives a second per core, virtual time {done.virtual / busy:,.0f} × real time per core"
    )


def explained(outcome: Outcome, *, timeline: bool) -> str:
    """Return what breaks a world, made as small as it can be."""
    small = shrunk(outcome)
    faults, operations = small.plan.faults, small.plan.operations
    parts = [(fault.at, str(fault)) for fault in faults] + [(operation.at, str(operation)) for operation in operations]
    lines = [
        f"seed {outcome.plan.seed} fails: {len(outcome.violations)} violations, the first is",
        f"  {outcome.violations[0]}",
        f"it still fails with {len(faults)} of its {len(outcome.plan.faults)} faults and {len(operations)} of its operations:",
        f"  {small.violations[0]}",
        f"  {small.plan.settings}",
        *(f"  {text}" for _, text in sorted(parts)),
        *(["timeline of that:", *small.history] if timeline else []),
        f"repeat it with: make simulate SEED={outcome.plan.seed}",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=2_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one, and print what happened as a timeline")
    parser.add_argument("--shape", choices=SHAPES, help="make all worlds of this shape, to measure it; otherwise it follows from the seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    shape = SHAPES.get(chosen.shape)
    if chosen.seed is not None:
        outcome = simulate(plan(chosen.seed, shape))
        if outcome.violations:
            print(explained(outcome, timeline=True))
            return 1
        print("\n".join(outcome.history))
        print(f"\nseed {chosen.seed}: every promise was kept; {outcome.tasks} tasks in {outcome.seconds:.1f} virtual seconds")
        return 0
    began, done = time.monotonic(), list[Portion]()
    with ProcessPoolExecutor(chosen.processes) as pool:
        for portion in pool.map(partial(run, shape=shape), portions(chosen.first, chosen.seeds)):
            done.append(portion)
            for seed in portion.failed:
                print(f"seed {seed} fails", flush=True)
    whole = total(done)
    print(figures(whole, time.monotonic() - began))
    for seed in whole.failed[:3]:
        print(explained(simulate(plan(seed, shape)), timeline=False))
    return 1 if whole.failed else 0


if __name__ == "__main__":
    sys.exit(main())
