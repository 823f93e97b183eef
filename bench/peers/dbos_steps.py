"""A fan-out of DBOS on PostgreSQL: one workflow that enqueues N others of one step each, and adds up what they return."""

from __future__ import annotations

import os
import sys
import time

from dbos import DBOS, DBOSConfig, SetWorkflowID

from bench.peers.lines import say

COUNT = int(sys.argv[1])
URL = os.environ["BENCH_URL"]
config: DBOSConfig = {"name": "bench", "system_database_url": URL, "log_level": "ERROR"}
DBOS(config=config)


@DBOS.step()  # type: ignore[untyped-decorator]
def part(number: int) -> int:
    return number


@DBOS.workflow()  # type: ignore[untyped-decorator]
def one(number: int) -> int:
    value: int = part(number)
    return value


@DBOS.workflow()  # type: ignore[untyped-decorator]
def total(count: int) -> int:
    queue = DBOS.retrieve_queue("parts")
    handles = [queue.enqueue(one, number) for number in range(count)]
    return sum(handle.get_result() for handle in handles)


if __name__ == "__main__":
    DBOS.launch()
    DBOS.register_queue("parts", polling_interval_sec=0.05)  # its own default is a second
    with SetWorkflowID("warm"):
        assert total(1) == 0
    began = time.perf_counter()
    assert total(COUNT) == sum(range(COUNT))
    say({"done": time.perf_counter() - began})
    sys.stdout.flush()
    os._exit(0)  # its threads go on otherwise
