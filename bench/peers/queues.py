"""Other task queues of Python on Redis: `python -m bench.peers.queues submit|work PEER TASKS`, with the server's address in REDIS_URL.

Each handler is a plain function that adds a byte to the file MARKS, by which whoever measures sees how many have run. Redis writes nothing
to disk, and all queues forget a task when it has run: both to their advantage.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

URL, THREADS, PROCESSES = os.environ["REDIS_URL"], 8, os.cpu_count() or 1
marks = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def plain(number: int) -> None:
    os.write(marks, b".")


def wait() -> None:
    while True:
        time.sleep(1)


class Dramatiq:
    def __init__(self) -> None:
        import dramatiq
        from dramatiq.brokers.redis import RedisBroker

        self._broker = RedisBroker(url=URL)
        dramatiq.set_broker(self._broker)
        self._actor = dramatiq.actor(plain)

    def submit(self, tasks: int) -> None:
        for number in range(tasks):
            self._actor.send(number)

    def work(self) -> None:
        from dramatiq import Worker

        Worker(self._broker, worker_threads=THREADS).start()
        wait()


class Celery:
    def __init__(self, pool: str, concurrency: int) -> None:
        import celery

        self._pool = pool, concurrency
        self._app = celery.Celery("queues", broker=URL)
        self._app.conf.task_ignore_result = True
        self._task = self._app.task(name="plain")(plain)

    def submit(self, tasks: int) -> None:
        for number in range(tasks):
            self._task.delay(number)

    def work(self) -> None:
        pool, concurrency = self._pool
        quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR")
        self._app.worker_main(["worker", f"--pool={pool}", f"--concurrency={concurrency}", *quiet])


class Huey:
    def __init__(self) -> None:
        import huey

        self._huey = huey.RedisHuey("queues", url=URL, results=False)
        self._task = self._huey.task()(plain)

    def submit(self, tasks: int) -> None:
        for number in range(tasks):
            self._task(number)

    def work(self) -> None:
        self._huey.create_consumer(workers=THREADS, periodic=False).run()


class Rq:
    def __init__(self, worker: str) -> None:
        import redis
        import rq

        self._worker = getattr(rq, worker)
        self._connection = redis.Redis.from_url(URL)
        self._queue = rq.Queue("queues", connection=self._connection)

    def submit(self, tasks: int) -> None:
        from bench.peers.queues import plain  # by the name under which the worker finds it

        for number in range(tasks):
            self._queue.enqueue(plain, number, result_ttl=0)

    def work(self) -> None:
        self._worker([self._queue], connection=self._connection).work(logging_level="ERROR")


PEERS: dict[str, Callable[[], Dramatiq | Celery | Huey | Rq]] = {
    "Dramatiq": Dramatiq,
    "Celery, threads": lambda: Celery("threads", THREADS),
    "Celery, prefork": lambda: Celery("prefork", PROCESSES),
    "Huey": Huey,
    "RQ, no forks": lambda: Rq("SimpleWorker"),
    "RQ": lambda: Rq("Worker"),
}


if __name__ == "__main__":
    verb, name, count = sys.argv[1:]
    peer = PEERS[name]()
    if verb == "submit":
        peer.submit(int(count))
    else:
        peer.work()
