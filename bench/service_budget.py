"""How long one request can hold the event loop of the service: the largest legal and the most hostile input of each route.

The server is a process of its own whose loop carries a heartbeat. For each request the longest stretch without a beat is printed, and its
ratio to the longest one of an idle loop just before: the machine's own pauses are in both. Beside it stands the CPU time that the loop's
thread used in the stretch that used the most: that hardly depends on what else the machine does.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import subprocess
import sys
import tempfile
import time
import zoneinfo
from collections.abc import Callable
from typing import Any, NamedTuple

from bench.rounds import ROOT, Report

BEAT = 0.002
IDLE = 0.5  # seconds
PATIENCE = 60
JSON, NDJSON = "application/json", "application/x-ndjson"


# ---- the server ----


async def _serve(url: str) -> None:
    from duetime import App, Context
    from duetime.api.server import Server

    app = App(url)

    @app.task
    async def anything(ctx: Context, value: Any = None) -> None: ...

    loop = asyncio.get_running_loop()
    last_beat_at, used = time.perf_counter(), time.thread_time()
    longest = most = 0.0

    def note() -> None:
        nonlocal longest, most
        longest = max(longest, time.perf_counter() - last_beat_at - BEAT)
        most = max(most, time.thread_time() - used)

    def beat() -> None:
        nonlocal last_beat_at, used
        note()
        last_beat_at, used = time.perf_counter(), time.thread_time()
        loop.call_later(BEAT, beat)

    def tell() -> None:
        nonlocal longest, most
        sys.stdin.readline()
        note()  # the request may have been answered, and this be called, before the next beat
        print(longest, most, flush=True)
        longest = most = 0.0

    loop.add_reader(sys.stdin, tell)
    async with Server(app, port=0).running() as server:
        beat()
        print(server.url, flush=True)
        await asyncio.Event().wait()


# ---- the requests ----


class Attack(NamedTuple):
    """A request, and others that prepare it. Bodies are made when it is sent: some have 60 MB."""

    name: str
    method: str
    path: str
    body: Callable[[], bytes] = lambda: b""
    media: str = JSON
    before: tuple[tuple[str, str, Any], ...] = ()


def _json(value: Any) -> Callable[[], bytes]:
    return lambda: json.dumps(value).encode()


def _task(**payload: Any) -> Any:
    return {"handler": "anything", "payload": payload}


def _clock(second: int) -> str:
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"


ZONES = sorted(zoneinfo.available_timezones())[:100]
CRON_UNION = [{"rule": "cron", "expression": f"{number % 60} 9 * * *", "tz": zone} for number, zone in enumerate(ZONES)]
NEVER = [{"rule": "cron", "expression": "0 0 30 2 *", "tz": zone} for zone in ZONES]
OFTEN = {"rule": "calendar", "at": [f"{minute // 60:02}:{minute % 60:02}" for minute in range(1440)], "tz": "Europe/Berlin"}
HALF_HOURS = {"mode": "exclude", "times": [f"{hour:02}:10-{hour:02}:59" for hour in range(24)]}
SECONDS = random.Random(1).sample(range(86_399), 10_000)
MANY_TIMES = {"mode": "include", "times": [f"{_clock(at)}-{_clock(at + 1)}" for at in SECONDS]}
INSTANTS = [f"2{number // 1000 % 10}{number // 100 % 10}{number // 10 % 10}-01-{number % 28 + 1:02}T00:00:00Z" for number in range(10_000)]


def _worker(handler: str, schema: Any) -> tuple[str, str, Any]:
    return ("POST", "/v1/workers", {"handlers": {handler: {"schema": schema}}})


def _doubling(levels: int) -> Any:
    parts = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**parts, f"d{levels}": {"type": "string"}}, "properties": {"value": {"$ref": "#/$defs/d0"}}}


ATTACKS = [
    Attack("64 MB of empty lines", "POST", "/v1/tasks/batch", lambda: b"\n" * 63_900_000, NDJSON),
    Attack("64 MB of lines with a space", "POST", "/v1/tasks/batch", lambda: b" \n" * 31_900_000, NDJSON),
    Attack("10,001 lines", "POST", "/v1/tasks/batch", lambda: b"\n".join([json.dumps(_task(value=1)).encode()] * 10_001), NDJSON),
    Attack("10,000 lines", "POST", "/v1/tasks/batch", lambda: b"\n".join([json.dumps(_task(value=1)).encode()] * 10_000), NDJSON),
    Attack("10,000 bad lines", "POST", "/v1/tasks/batch", lambda: b'{"handler": 1}\n' * 10_000, NDJSON),
    Attack("10,000 unknown handlers", "POST", "/v1/tasks/batch",
           _json([{"handler": f"unknown-{number}"} for number in range(10_000)])),
    Attack("an array of 20 million", "POST", "/v1/tasks/batch", lambda: b"[" + b"{}," * 21_000_000 + b"{}]"),
    Attack("60 items of 1 MB", "POST", "/v1/tasks/batch", _json([_task(value="x" * 990_000)] * 60)),
    Attack("60 items of 1 MB in small lists", "POST", "/v1/tasks/batch",
           lambda: b"[" + b",".join([b'{"handler": "anything", "payload": {"value": [' + b"[]," * 330_000 + b"[]]}}"] * 60) + b"]"),
    Attack("an item of 60 MB", "POST", "/v1/tasks/batch",
           lambda: b'[{"handler": "anything", "payload": {"value": [' + b"[]," * 20_000_000 + b"[]]}}]"),
    Attack("10,000 new collections", "POST", "/v1/tasks/batch",
           _json([{**_task(value=1), "collection": f"c{number}"} for number in range(10_000)])),
    Attack("10,000 collections too many", "POST", "/v1/tasks/batch",
           _json([{**_task(value=1), "collection": f"d{number}"} for number in range(10_000)])),
    Attack("10,000 keys, all taken", "POST", "/v1/tasks/batch",
           _json([{**_task(value=1), "key": "one"} for number in range(10_000)])),
    Attack("4 MB of small lists", "POST", "/v1/tasks", lambda: json.dumps(_task(value=[])).encode()[:-3] + b"[]," * 1_300_000 + b"[]]}}"),
    Attack("1 MB of small lists", "POST", "/v1/tasks", lambda: json.dumps(_task(value=[])).encode()[:-3] + b"[]," * 300_000 + b"[]]}}"),
    Attack("4 MB of small numbers", "POST", "/v1/tasks", lambda: json.dumps(_task(value=[])).encode()[:-3] + b"1," * 1_900_000 + b"1]}}"),
    Attack("4 MB of names", "POST", "/v1/tasks",
           lambda: json.dumps(_task(**{str(number): 1 for number in range(300_000)})).encode()),
    Attack("100,000 levels", "POST", "/v1/tasks",
           lambda: b'{"handler": "anything", "payload": {"value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"),
    Attack("a large meta", "POST", "/v1/tasks", _json({**_task(value=1), "meta": {f"n{number}": "x" for number in range(200_000)}})),
    Attack("a preview of 100 zones", "POST", "/v1/rules/preview", _json({"rule": {"rule": "union", "rules": CRON_UNION}, "count": 1000})),
    Attack("a preview of what never comes", "POST", "/v1/rules/preview", _json({"rule": {"rule": "union", "rules": NEVER}, "count": 1000})),
    Attack("a preview of 100 calendars", "POST", "/v1/rules/preview",
           _json({"rule": {"rule": "union", "rules": [OFTEN] * 100}, "count": 1000})),
    Attack("a preview of 10,000 instants × 100", "POST", "/v1/rules/preview",
           _json({"rule": {"rule": "union", "rules": [{"rule": "at", "instants": INSTANTS[:1_600]}] * 100}, "count": 1000})),
    Attack("a preview within a calendar", "POST", "/v1/rules/preview",
           _json({"cron": "30 * * * *", "calendars": ["hours"], "count": 1000}), before=(("PUT", "/v1/calendars/hours", HALF_HOURS),)),
    Attack("100 zones within a calendar", "POST", "/v1/rules/preview",
           _json({"rule": {"rule": "union", "rules": [{**each, "expression": "30 * * * *"} for each in CRON_UNION[:60]]},
                  "calendars": ["hours"], "count": 1000})),
    Attack("a calendar of 10,000 times", "PUT", "/v1/calendars/times", _json(MANY_TIMES)),
    Attack("a preview within 10,000 times", "POST", "/v1/rules/preview", _json({"every": 1, "calendars": ["times"], "count": 1000})),
    Attack("a schedule within a calendar", "PUT", "/v1/schedules/late",
           _json({"handler": "anything", "cron": "30 * * * *", "calendars": ["hours"]})),
    Attack("a schedule of what never comes", "PUT", "/v1/schedules/never",
           _json({"handler": "anything", "rule": {"rule": "union", "rules": NEVER}})),
    Attack("10,000 schedules", "PUT", "/v1/schedules",
           _json({"schedules": [{"name": f"s{number}", "handler": "anything", "cron": "*/5 * * * *"} for number in range(10_000)]})),
    Attack("a list of 1,000 schedules", "GET", "/v1/schedules?limit=1000"),
    Attack("a forecast of a year", "GET", "/v1/forecast?days=366"),
    Attack("a backfill of 10,000", "POST", "/v1/schedules/s1/backfill",
           _json({"start": "2020-01-01T00:00:00Z", "end": "2020-02-04T00:00:00Z", "concurrency": 100})),
    Attack("a list of 1,000 tasks", "GET", "/v1/tasks?limit=1000"),
    Attack("a list by text", "GET", "/v1/tasks?limit=1000&text=nothing"),
    Attack("a cancel of all", "POST", "/v1/tasks/cancel", _json({"handler": "anything"})),
    Attack("handlers with large schemas", "GET", "/v1/handlers",
           before=(("POST", "/v1/workers", {"handlers": {f"h{n}": {"schema": {"enum": list(range(400))}} for n in range(1_000)}}),)),
    Attack("1,000 handlers", "POST", "/v1/workers",
           _json({"handlers": {f"h{n}": {"schema": {"enum": list(range(600))}} for n in range(1_000)}})),
    Attack("a deep schema", "POST", "/v1/workers",
           lambda: b'{"handlers": {"resize": {"schema": ' + b'{"items":' * 500 + b"{}" + b"}" * 500 + b"}}}"),
    Attack("a schema of 4 MB", "POST", "/v1/workers",
           _json({"handlers": {"resize": {"schema": {"properties": {f"p{n}": {"type": "string"} for n in range(100_000)}}}}})),
    Attack("a pattern that backtracks", "POST", "/v1/tasks", _json({"handler": "backtracking", "payload": {"value": "a" * 30 + "b"}}),
           before=(_worker("backtracking", {"properties": {"value": {"pattern": "(a+)+$"}}}),)),
    Attack("a pattern that is quadratic", "POST", "/v1/tasks", _json({"handler": "quadratic", "payload": {"value": "a" * 990_000}}),
           before=(_worker("quadratic", {"properties": {"value": {"pattern": "a*b"}}}),)),
    Attack("2^24 ways", "POST", "/v1/tasks",
           _json({"handler": "doubling", "payload": {"value": 1}}), before=(_worker("doubling", _doubling(24)),)),
    Attack("a large enum", "POST", "/v1/tasks", _json({"handler": "choosing", "payload": {"value": list(range(150_000))}}),
           before=(_worker("choosing", {"properties": {"value": {"items": {"enum": [f"e{n}" for n in range(900)]}}}}),)),
    Attack("a batch against a schema", "POST", "/v1/tasks/batch",
           lambda: b"[" + b",".join([b'{"handler": "adding", "payload": {"value": [' + b"1," * 490_000 + b"1]}}"] * 60) + b"]",
           before=(_worker("adding", {"properties": {"value": {"items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}}}),)),
    Attack("renewing 100,000", "POST", "/v1/workers/x/renew", _json({"running": ["x" * 30] * 100_000})),
    Attack("metrics", "GET", "/metrics"),
    Attack("description", "GET", "/openapi.json"),
]  # fmt: skip


# ---- measuring ----


class Service:
    """The server process, and one connection to it."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-m", "bench.service_budget", "serve", url]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        self._address = self.process.stdout.readline().strip().removeprefix("http://")

    def longest(self) -> tuple[float, float]:
        """Return the longest time without a beat since the last call, and the most CPU time of one, in milliseconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        held, used = self.process.stdout.readline().split()
        return float(held) * 1e3, float(used) * 1e3

    def send(self, method: str, path: str, body: bytes, media: str) -> int:
        connection = http.client.HTTPConnection(self._address, timeout=PATIENCE)
        try:
            connection.request(method, path, body, {"content-type": media} if body else {})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        except (BrokenPipeError, ConnectionResetError):  # refused before it was sent whole
            return 413
        finally:
            connection.close()


def run(report: Report, chosen: str = "") -> None:
    """Send each attack and enter how long the loop stood still."""
    with tempfile.TemporaryDirectory() as folder:
        service = Service(f"sqlite:///{folder}/store.db")
        try:
            for attack in ATTACKS:
                if chosen in attack.name:
                    _measure(report, service, attack)
        finally:
            service.process.kill()
            service.process.wait()


def _measure(report: Report, service: Service, attack: Attack) -> None:
    for method, path, body in attack.before:
        service.send(method, path, json.dumps(body).encode(), JSON)
    body = attack.body()
    service.longest()
    time.sleep(IDLE)
    idle, _ = service.longest()
    began = time.perf_counter()
    try:
        status = service.send(attack.method, attack.path, body, attack.media)
    except TimeoutError:
        report.lack(attack.name, f"no answer within {PATIENCE} s")
        return
    took, (held, used) = (time.perf_counter() - began) * 1e3, service.longest()
    measured = f"{held:,.1f} ms, CPU {used:.1f} ms, {status} after {took:,.0f} ms"
    report.add(attack.name, measured, f"idle {idle:.1f} ms", held / idle, None)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        from duetime.api.server import loop_factory

        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(sys.argv[2]))
    else:
        figures = Report("How long one request holds the event loop of the service")
        run(figures, " ".join(sys.argv[1:]))
        figures.show()
