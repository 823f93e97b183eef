"""The `demo` command: thousands of unpaid orders expire on time although a worker is killed in the middle.

This file is the story. `shop.py` is the shop, `screen.py` shows the progress, `report.py` checks the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from duetime.cli.failures import DONE, REFUSED
from duetime.errors import MissingExtra

if TYPE_CHECKING:
    from duetime.cli.demo.report import Evidence

PRODUCTS = 20
PAYING = 0.6
# The story in parts of its length: orders are placed in the first half, and the "30 minutes" to pay are 0.4 of it.
PLACING, PAY_WITHIN, SPREAD, KILL, REPLACE = 0.5, 0.4, 0.2, 0.65, 0.1
PATIENCE = 30.0  # seconds to wait for the last expiry before it counts as lost


def run(arguments: Sequence[str]) -> int:
    """Run the demo with the arguments of the command line, and return the exit code."""
    code: int = command.main(list(arguments), "duetime demo", standalone_mode=False) or 0
    return code


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--orders", type=click.IntRange(20, 1_000_000), default=6_000, show_default=True, help="How many orders are placed.")
@click.option("--seconds", type=click.FloatRange(3, 600), default=30, show_default=True, help="How long the story takes.")
@click.option(
    "--synchronous",
    type=click.Choice(["normal", "full"]),
    default="normal",
    show_default=True,
    help="normal: commits survive a killed process; full: a loss of power too, at the pace of the disk.",
)
@click.option("--keep", is_flag=True, help="Keep the folder, to look around in it.")
@click.option("--web", is_flag=True, help="Show it on the dashboard too, at an address that is printed, until ^C.")
def command(orders: int, seconds: float, synchronous: str, keep: bool, web: bool) -> int:
    """Unpaid orders expire on time although a worker is killed."""
    console = Console(highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="duetime-demo-"))
    workers = Workers(folder)
    for number in (signal.SIGTERM, signal.SIGHUP):  # clean up as after Ctrl-C
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        os.environ["DUETIME_DEMO_FOLDER"] = str(folder)
        os.environ["DUETIME_DEMO_SYNCHRONOUS"] = synchronous
        demo = Demo(console, workers, orders, seconds)
        if web:
            return asyncio.run(demo.play_on_dashboard())
        asyncio.run(demo.play())
        workers.stop()
        return verdict(console, demo.evidence())
    except ExceptionGroup as group:  # of the TaskGroup; the first is what went wrong
        raise group.exceptions[0] from None
    finally:
        workers.stop()
        if keep:
            look_around(console, folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)


class Workers:
    """The worker processes of the demo, each a plain `duetime worker`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.deaths: dict[int, int] = {}  # process id and instant of those that were killed

    def start(self) -> None:
        """Start one more. It has its own session, so that Ctrl-C reaches only the demo, which then stops it."""
        with self._log(len(self.processes)).open("wb") as log:
            arguments = [sys.executable, "-m", "duetime.cli", "worker", "duetime.cli.demo.shop:app"]
            process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self.processes.append(process)

    def pid(self, number: int) -> int:
        """Return the worker's own process id, which it says when it is ready; until then, that of the guard above it."""
        said = re.search(r" process (\d+)\) runs ", self._log(number).read_text(errors="replace"))
        return self.processes[number].pid if said is None else int(said[1])

    def kill(self, number: int) -> None:
        """Kill one without warning, wait until it is dead, and record the instant."""
        from duetime.cli.demo.shop import now

        pid = self.pid(number)
        os.kill(pid, signal.SIGKILL)
        self.processes[number].wait()
        self.deaths[pid] = now()

    def check(self) -> None:
        """Raise if one has ended that was not killed."""
        for number, process in enumerate(self.processes):
            if process.poll() is not None and self.pid(number) not in self.deaths:
                tail = self._log(number).read_text(errors="replace").strip()[-2_000:]
                raise click.ClickException(f"worker {number + 1} ended with status {process.returncode}: {tail or 'it said nothing'}")

    def states(self) -> list[str]:
        """Describe each one for the display: alive or killed."""
        return [f"{pid} {'✗ killed' if pid in self.deaths else '● alive'}" for pid in map(self.pid, range(len(self.processes)))]

    def stop(self) -> None:
        """Ask all to stop, and kill those that take too long."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 10
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            if process.poll() is None:
                process.kill()
                process.wait()

    def _log(self, number: int) -> Path:
        return self._folder / f"worker-{number + 1}.log"


class Demo:
    """The story, step by step."""

    def __init__(self, console: Console, workers: Workers, orders: int, seconds: float) -> None:
        # imported only here, because importing the shop creates its App in the folder that the environment names
        from duetime.cli.demo import shop
        from duetime.cli.demo.screen import Screen

        self._shop = shop
        self._screen = Screen(console, orders)
        self._console = console
        self._workers = workers
        self._orders = orders
        self._seconds = seconds
        self._chance = random.Random(20)
        self._db = shop.connect()
        self._paying: list[asyncio.Task[None]] = []
        self._cancelled: dict[int, int] = {}  # when the cancel of an order's expiry was answered with `cancelled`
        self._refused = 0

    async def play_on_dashboard(self) -> int:
        """Play with the dashboard beside, which stays when the story is over, until ^C."""
        try:
            from duetime.api.app import Api
            from duetime.api.server import Server
            from duetime.web.web import Web
        except ModuleNotFoundError as missing:
            raise MissingExtra(f"the dashboard needs the package {missing.name}: pip install 'duetime[server]'") from None
        app = self._shop.app
        async with Server(app, api=Api(app, extension=Web()), port=0).running() as server:
            self._console.print(Text(f"Dashboard: {server.url}/ui/\n", "bold"))
            await self.play()
            code = verdict(self._console, self.evidence())
            self._console.print(Text(f"Look around: {server.url}/ui/   ^C ends it.", "bold"))
            with contextlib.suppress(asyncio.CancelledError):  # by ^C
                await asyncio.Event().wait()
        return code

    async def play(self) -> None:
        """Open the shop, run customers and workers, and wait until every order has ended."""
        async with self._shop.app:
            self._open_shop()
            await self._start_workers()
            with self._screen.shown():
                async with asyncio.TaskGroup() as group:
                    watching = group.create_task(self._watch())
                    killing = group.create_task(self._kill_a_worker())
                    await self._place_orders(group)
                    await asyncio.gather(killing, *self._paying)
                    await self._wait_for_the_rest()
                    watching.cancel()

    def _open_shop(self) -> None:
        shop, pay_within = self._shop, self._seconds * PAY_WITHIN
        stock = self._orders * 3
        self._db.executescript(shop.TABLES)
        with shop.transaction(self._db):
            self._db.executemany("insert into products values (?, ?, ?)", [(number, stock, stock) for number in range(PRODUCTS)])
        more = "" if shop.SYNCHRONOUS == "full" else " Duetime's default, full, keeps those too: try --synchronous full."
        for line in (
            Text("Duetime demo: unpaid orders", "bold"),
            f"{self._orders:,} orders are placed, about {PAYING:.0%} are paid in time, the others must expire on time and give their goods "
            f"back. The 30 minutes to pay take about {pay_within:.3g} s here ({1_800 / pay_within:,.0f} times faster).",
            f"One SQLite file holds the shop's tables and Duetime's. {shop.app.insight.durability}{more}",
            "",
        ):
            self._screen.print(line)

    async def _start_workers(self) -> None:
        self._workers.start()
        self._workers.start()
        with self._console.status("starting two workers") if self._console.is_terminal else contextlib.nullcontext():
            deadline = time.monotonic() + 30
            while len(await self._shop.app.workers()) < 2:
                self._workers.check()
                if time.monotonic() > deadline:
                    raise click.ClickException("the two workers did not start within 30 s")
                await asyncio.sleep(0.05)

    async def _watch(self) -> None:
        while True:
            self._workers.check()
            self._screen.workers = self._workers.states()
            self._screen.update()
            await asyncio.sleep(0.1)

    async def _place_orders(self, group: asyncio.TaskGroup) -> None:
        pids = " and ".join(str(self._workers.pid(number)) for number in range(len(self._workers.processes)))
        self._screen.say(f"Two workers run (processes {pids}). Each holds a file lock that nothing but its death frees.")
        self._screen.say("Orders come in. Order, stock and expiry task are written in one transaction: all of it or nothing.")
        window = self._seconds * PLACING
        for number in range(1, self._orders + 1):
            await asyncio.sleep(window * number / self._orders - self._screen.elapsed())
            if self._screen.elapsed() > 1.5 * window:
                self._screen.say(f"{self._orders:,} orders in {window:g} s are too many for this machine; {number - 1:,} must do.")
                break
            pay_within = self._seconds * PAY_WITHIN * self._chance.uniform(1 - SPREAD, 1 + SPREAD)
            await self._shop.place_order(self._db, number, self._chance.randrange(PRODUCTS), self._chance.randint(1, 3), pay_within)
            self._screen.placed += 1
            if self._chance.random() < PAYING:
                self._paying.append(group.create_task(self._pay(number, pay_within * self._chance.uniform(0.1, 1.0))))

    async def _pay(self, number: int, after: float) -> None:
        await asyncio.sleep(after)
        answer = await self._shop.pay_order(self._db, number)
        if answer == "too late":
            self._refused += 1
            return
        if answer == "cancelled":
            self._cancelled[number] = self._shop.now()
        self._screen.paid += 1
        self._screen.say_once(f"Customers pay. Each expiry is cancelled by its key, such as order-{number}, and never starts.", "paid")

    async def _kill_a_worker(self) -> None:
        await asyncio.sleep(self._seconds * KILL)
        victim = self._workers.pid(0)
        deadline = time.monotonic() + self._seconds / 4
        self._screen.look()
        while not self._screen.running(victim) and time.monotonic() < deadline:
            await asyncio.sleep(0.002)
            self._screen.look()
        self._workers.kill(0)
        self._screen.look()
        hit = self._screen.forget(victim)
        self._screen.say(f"Worker 1 (process {victim}) is killed by SIGKILL in the middle of {hit} attempts. Worker 2 goes on.", "bold red")
        await asyncio.sleep(self._seconds * REPLACE)
        self._workers.start()
        self._screen.say("A new worker takes its place.")

    async def _wait_for_the_rest(self) -> None:
        (last,) = self._db.execute("select max(expires_at) from orders").fetchone()
        while self._shop.now() < last + PATIENCE * 1_000_000:
            (left,) = self._db.execute("select exists (select 1 from orders where state = 'open')").fetchone()
            if not left and self._screen.idle:
                self._screen.say("Every order is paid or expired. The workers are told to stop.")
                return
            await asyncio.sleep(0.1)
        self._screen.say(f"Some orders have not ended {PATIENCE:g} s after they were due. The workers are told to stop.", "bold red")

    def evidence(self) -> Evidence:
        """Collect what the report is computed from: the shop's tables, the journal, and the answers to the customers."""
        from duetime.cli.demo.report import Evidence, Order, Product, read_journal

        with contextlib.closing(self._db):
            orders = [Order(*row) for row in self._db.execute("select * from orders order by id")]
            products = [Product(*row) for row in self._db.execute("select * from products")]
        journal, _ = read_journal(self._shop.JOURNAL)
        return Evidence(
            orders=orders, products=products, journal=journal, cancelled=self._cancelled, deaths=self._workers.deaths, refused=self._refused
        )


def verdict(console: Console, evidence: Evidence) -> int:
    """Check and print what happened; the exit code says whether every promise was kept."""
    from duetime.cli.demo.report import examine, print_report

    report = examine(evidence)
    print_report(console, report, evidence)
    if report.all_kept:
        console.print(Text("Every promise was kept.", "bold green"))
        return DONE
    broken = ", ".join(f"{name} {len(found):,}" for name, found in report.breaches.items() if found)
    console.print(Text(f"Promises were broken: {broken}.", "bold red"))
    return REFUSED


def look_around(console: Console, folder: Path) -> None:
    """Print commands that show what is left in the folder."""
    from duetime.cli.demo.report import read_journal

    journal, _ = read_journal(folder / "journal.jsonl")
    twice = next((entry.task for entry in journal if entry.attempt > 1), None)
    one = "duetime workers" if twice is None else f"duetime task {twice}"  # with an attempt that was lost
    console.print(f"The folder {folder} is kept. Look around with:", soft_wrap=True)
    for verb in ("duetime stats", "duetime tasks --state cancelled", one):
        console.print(f"  {verb} --url sqlite:///{folder}/shop.db", soft_wrap=True)
