"""A chord of Celery on Redis: `worker` runs its tasks, `chord N` submits N and a body, and says how long that took."""

from __future__ import annotations

import os
import sys
import time

from celery import Celery, chord

from bench.peers.lines import say

app = Celery("bench.peers.celery_chord", broker=os.environ["BENCH_URL"], backend=os.environ["BENCH_URL"])
app.conf.update(
    task_serializer="json",
    result_serializer="json",
    accept_content=["json"],
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=100,  # the fastest of 4, 100 and 1,000; Celery's own default is 4
    task_acks_late=True,  # otherwise a task whose process dies is lost, which no other contestant allows
)


@app.task(name="part")  # type: ignore[untyped-decorator]
def part(number: int) -> int:
    return number


@app.task(name="total")  # type: ignore[untyped-decorator]
def total(numbers: list[int]) -> int:
    return sum(numbers)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        app.worker_main(["worker", "--concurrency", sys.argv[2], "--loglevel", "error", "--without-gossip", "--without-mingle"])
    else:
        count = int(sys.argv[2])
        assert chord([part.s(1)])(total.s()).get(timeout=60) == 1  # the worker is there
        began = time.perf_counter()
        waiting = chord([part.s(number) for number in range(count)])(total.s())
        submitted = time.perf_counter() - began
        assert waiting.get(timeout=600, interval=0.005) == sum(range(count))
        say({"submitted": submitted, "done": time.perf_counter() - began})
