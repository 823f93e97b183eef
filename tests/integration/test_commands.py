"""Commands as handlers: what they are given, what their ends mean, and how they are stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from duetime import App, Handlers, InvalidHandler, InvalidPayload, InvalidValue, RetryPolicy, Sandbox, Secret, State, Task, TaskFailed
from duetime.model.secrets import write_key
from duetime.runtime.processes import start_of
from duetime.secrets.keys import new_key
from duetime.targets.command import supervisors
from tests.chaos.fleet import until
from tests.servers.waiting import PATIENCE

pytestmark = pytest.mark.slow

ONCE = RetryPolicy.none()
SAYS_ARGUMENTS = 'for each in "$@"; do printf "<%s>" "$each"; done'


@dataclass
class Backup:
    name: str
    level: int = 3


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'duetime.db'}", user="test")


async def printed(app: App, task: Task[Any]) -> str:
    return "".join(each.text for each in await app.output.read(task))


def is_there(path: str) -> bool:
    return Path(path).exists()


async def is_in(app: App, task: Task[Any], state: State) -> bool:
    return (await app.get(task)).state is state


async def failed(app: App, task: Task[Any]) -> TaskFailed:
    with pytest.raises(TaskFailed) as raised:
        await app.result(task, timeout=PATIENCE)
    return raised.value


async def test_a_command_gets_its_payload_and_gives_its_result(app: App) -> None:
    report = app.command("report", ["sh", "-c", "cat >&3"], payload=Backup, result=dict[str, Any])
    async with app.worker():
        task = await report.now(name="shop")
        assert await app.result(task, timeout=PATIENCE) == {"name": "shop", "level": 3}
        [attempt] = await app.attempts(task)
    assert attempt.detail is not None
    assert attempt.detail["exit_code"] == 0
    assert attempt.detail["cpu_seconds"] >= 0
    assert attempt.detail["peak_memory"] > 0


async def test_a_result_has_the_declared_type(app: App) -> None:
    count = app.command("count", ["sh", "-c", "echo 7 >&3"], result=int)
    copied = app.command("copied", ["sh", "-c", "cat >&3"], result=Backup)
    plain = app.command("plain", ["sh", "-c", "cat >&3"])
    nothing = app.command("nothing", ["true"])
    async with app.worker():
        assert await app.result(await count.now(), timeout=PATIENCE) == 7
        assert await app.result(await copied.now(name="shop"), timeout=PATIENCE) == Backup("shop")
        assert await app.result(await plain.now(name="shop"), timeout=PATIENCE) == {"name": "shop"}
        assert await app.result(await nothing.now(), timeout=PATIENCE) is None


@pytest.mark.parametrize("script", ["echo seven >&3", "echo '\"seven\"' >&3", "true", "head -c 2000000 /dev/zero >&3"])
async def test_a_result_that_does_not_fit_is_fatal_because_the_work_is_done(app: App, script: str) -> None:
    count = app.command("count", ["sh", "-c", script], result=int)
    async with app.worker():
        task = await count.now()
        await failed(app, task)
        [attempt] = await app.attempts(task)
    assert attempt.outcome == "fatal"


@pytest.mark.parametrize(
    "value",
    ["a b", "'", '"', "$(touch /tmp/evil)", "`id`", "a\nb", "--help", "-", "", "*", "ä €", "\\", ";ls", "{payload.name}", "%s"],
)
async def test_an_argument_stays_one_argument_whatever_it_contains(app: App, value: str) -> None:
    shown = app.command("shown", ["sh", "-c", SAYS_ARGUMENTS, "sh", "{payload.value}", "x{payload.value}y", "end"])
    async with app.worker():
        task = await shown.now(value=value)
        await app.result(task, timeout=PATIENCE)
        assert await printed(app, task) == f"<{value}><x{value}y><end>"


async def test_a_nul_character_and_a_missing_reference_are_refused_before_anything_runs(app: App, tmp_path: Path) -> None:
    touched = app.command("touched", ["touch", str(tmp_path / "ran"), "{payload.value}"], retry=ONCE)
    async with app.worker():
        for payload, problem in (({"value": "a\0b"}, "NUL"), ({}, "the payload has no value"), ({"value": [1]}, "a list")):
            error = await failed(app, await touched.now(**payload))
            assert problem in str(error)
    assert not (tmp_path / "ran").exists()


async def test_the_environment_is_exactly_what_is_declared(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "worker's")
    monkeypatch.setenv("OTHER", "worker's")
    shown = app.command("shown", ["/usr/bin/env"], env={"OWN": "a b=$c"}, keep_env=["KEPT", "NOT_THERE"], timeout=60)
    async with app.worker():
        task = await shown.now()
        await app.result(task, timeout=PATIENCE)
        found = dict(each.split("=", 1) for each in (await printed(app, task)).splitlines())
    deadline = found.pop("DUETIME_DEADLINE")
    assert found == {"OWN": "a b=$c", "KEPT": "worker's", "DUETIME_TASK": task.id, "DUETIME_ATTEMPT": "1", "DUETIME_FENCE": "1"}
    assert deadline.endswith("+00:00")


@pytest.mark.parametrize("code", [0, 1])
async def test_a_secret_is_passed_in_the_environment_and_blanked_in_all_that_is_kept(tmp_path: Path, code: int) -> None:
    value = "sk-live-0123456789abcdef"
    app = App(f"sqlite:///{tmp_path / 'duetime.db'}", user="test", secret_keys=write_key(new_key("2026a")))
    script = f'echo "key $KEY"; printf %s "$KEY" | wc -c; echo "::progress 0.5 $KEY"; printf \'"%s"\' "$KEY" >&3; exit {code}'
    leaks = app.command("leaks", ["sh", "-c", script], env={"KEY": Secret("billing")}, retry=ONCE)
    async with app, app.worker():
        await app.secrets.put("billing", value)
        task = await leaks.now()
        record = await app.client.wait(task, timeout=PATIENCE)
        lines = (await printed(app, task)).split("\n")
        assert lines[0] != f"key {value}"
        assert lines[1].strip() == str(len(value)), "the command itself was given it"
        assert value not in f"{record}{lines}{await app.attempts(task)}"
        assert (record.state is State.SUCCEEDED) == (code == 0)


async def test_a_secret_that_is_not_there_fails_for_good_before_anything_runs(app: App, tmp_path: Path) -> None:
    touched = app.command("touched", ["touch", str(tmp_path / "ran")], env={"KEY": Secret("missing")})
    async with app.worker():
        assert "missing" in str(await failed(app, await touched.now()))
    assert not (tmp_path / "ran").exists()


async def test_a_variable_that_is_not_utf_8_and_a_very_long_one_are_passed_on(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODD", "\udcff")
    monkeypatch.setenv("LONG", "x" * 100_000)
    shown = app.command("shown", ["sh", "-c", "printf %s $ODD | od -An -tx1; printf %s $LONG | wc -c"], keep_env=["PATH", "ODD", "LONG"])
    async with app.worker():
        task = await shown.now()
        await app.result(task, timeout=PATIENCE)
        assert (await printed(app, task)).split() == ["ff", "100000"]


async def test_it_runs_in_an_empty_folder_of_its_own_that_is_removed(app: App) -> None:
    script = "pwd; ls -A | wc -l; umask; mkdir -p a/b; echo x > a/b/c; chmod 000 a/b; ln -s /etc link"
    made = app.command("made", ["sh", "-c", script])
    async with app.worker():
        task = await made.now()
        await app.result(task, timeout=PATIENCE)
        folder, count, umask = (await printed(app, task)).split()
    assert (count, umask) == ("0", "0077")
    assert task.id in folder
    assert [is_there(path) for path in (folder, "/etc/passwd")] == [False, True]


async def test_it_inherits_no_descriptor_but_its_own(app: App) -> None:
    listed = app.command("listed", ["python3", "-I", "-S", "-c", "import os; print(*sorted(map(int, os.listdir('/proc/self/fd'))))"])
    async with app.worker():
        task = await listed.now()
        await app.result(task, timeout=PATIENCE)
        *own, _ = (await printed(app, task)).split()  # the last one is that of the listing itself
    assert own == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("stdin", "expected"),
    [
        (None, ""),
        ("Hello {payload.name}", "Hello shop"),
        ({"who": "{payload.name}", "level": "{payload.level}"}, '{"who":"shop","level":3}'),
        ("{payload.level}", "3"),
        ("{payload}", '{"level":3,"name":"shop"}'),
    ],
)
async def test_stdin_is_what_was_declared(app: App, stdin: object, expected: str) -> None:
    copied = app.command("copied", ["cat"], payload=Backup, stdin=stdin)
    async with app.worker():
        task = await copied.now(name="shop", level=3)
        await app.result(task, timeout=PATIENCE)
        assert await printed(app, task) == expected


async def test_exit_codes_mean_what_was_declared(app: App) -> None:
    exits = app.command(
        "exits", ["sh", "-c", "echo last words; exit $1", "sh", "{payload.code}"], exits={1: "succeeded", 78: "fatal"}, retry=ONCE
    )
    async with app.worker():
        for code, outcome in ((0, "succeeded"), (1, "succeeded"), (2, "failed"), (75, "retry_later"), (78, "fatal")):
            task = await exits.now(code=code)
            await until("an attempt has ended", partial(has_ended, app, task))
            attempt = (await app.attempts(task))[0]
            assert attempt.outcome == outcome
            assert attempt.detail is not None
            assert attempt.detail["exit_code"] == code
            if outcome != "succeeded":
                assert attempt.error is not None
                assert (attempt.error.type, attempt.error.message) == ("CommandFailed", f"exit code {code}")
                assert attempt.error.traceback == "last words\n"


async def has_ended(app: App, task: Task[Any]) -> bool:
    attempts = await app.attempts(task)
    return bool(attempts) and attempts[0].outcome is not None


async def test_a_retry_uses_up_no_try_and_comes_later(app: App) -> None:
    busy = app.command("busy", ["sh", "-c", "exit 75"], retry=ONCE)
    async with app.worker():
        task = await busy.now()
        await until("it has run", partial(has_ended, app, task))
        found = await app.get(task)
    assert (found.state, found.tries) == (State.PENDING, 0)
    assert (found.due_at - task.due_at).total_seconds() > 30


async def test_a_signal_is_named(app: App) -> None:
    crashes = app.command("crashes", ["sh", "-c", "kill -SEGV $$"], retry=ONCE)
    async with app.worker():
        task = await crashes.now()
        error = await failed(app, task)
        [attempt] = await app.attempts(task)
    assert "killed by signal 11 (SIGSEGV)" in str(error)
    assert attempt.detail is not None
    assert attempt.detail["signal"] == "SIGSEGV"


@pytest.mark.parametrize(("program", "problem"), [("no-such-program", "is not on this machine"), ("/etc/passwd", "Permission denied")])
async def test_a_program_that_cannot_be_started_fails_with_the_reason(app: App, program: str, problem: str) -> None:
    missing = app.command("missing", [program], retry=ONCE)
    async with app.worker():
        error = await failed(app, await missing.now())
        assert "CommandNotStarted" in str(error)
        assert problem in str(error)
        assert program in str(error)


async def test_progress_is_reported_by_lines_that_are_not_kept(app: App, tmp_path: Path) -> None:
    script = (
        "echo begin; printf '::pro'; printf 'gress 0.5 half of it\\n'; echo ::progress nonsense; "
        f"until [ -e {tmp_path}/go ]; do sleep 0.01; done"
    )
    reports = app.command("reports", ["sh", "-c", script])
    async with app.worker():
        task = await reports.now()

        async def is_seen() -> bool:
            found = await app.get(task)
            return (found.progress, found.progress_text) == (0.5, "half of it")

        await until("the progress is seen", is_seen)
        (tmp_path / "go").touch()
        await app.result(task, timeout=PATIENCE)
        assert await printed(app, task) == "begin\n::progress nonsense\n"


async def test_a_timeout_sends_the_signal_and_gives_time_to_end(app: App, tmp_path: Path) -> None:
    script = f"trap 'echo stopping; exit 4' INT; echo ready; touch {tmp_path}/ready; while :; do sleep 0.01; done"
    slow = app.command("slow", ["sh", "-c", script], stop="SIGINT", timeout=1.0, retry=ONCE)
    async with app.worker():
        task = await slow.now()
        error = await failed(app, task)
        [attempt] = await app.attempts(task)
        assert await printed(app, task) == "ready\nstopping\n"
    assert attempt.outcome == "timed_out"
    assert attempt.detail is not None
    assert attempt.detail["exit_code"] == 4
    assert "timeout of 1 s" in str(error)


async def test_a_command_that_ends_well_although_it_was_told_to_stop_has_succeeded(app: App) -> None:
    last = app.command("last", ["sh", "-c", "trap 'echo 1 >&3; exit 0' TERM; while :; do sleep 0.01; done"], timeout=0.5, result=int)
    async with app.worker():
        assert await app.result(await last.now(), timeout=PATIENCE) == 1


async def test_what_a_command_started_has_the_same_time_to_stop(app: App, tmp_path: Path) -> None:
    inner = f"trap 'sleep 0.3; touch {tmp_path}/tidy; exit' TERM; touch {tmp_path}/ready; while :; do sleep 0.01; done"
    outer = app.command("outer", ["sh", "-c", f'sh -c "{inner}" & wait'])
    async with app.worker():
        task = await outer.now()
        await until("it runs", (tmp_path / "ready").exists)
        await app.cancel(task)
        await until("it is cancelled", partial(is_in, app, task, State.CANCELLED))
    assert (tmp_path / "tidy").exists()


async def test_a_graceful_stop_gives_the_task_back(app: App, tmp_path: Path) -> None:
    waits = app.command("waits", ["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 1000"])
    async with app.worker(grace=0.0):
        task = await waits.now()
        await until("it runs", lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()))
    assert start_of(int((tmp_path / "pid").read_text())) is None
    async with app:
        found = await app.get(task)
    assert (found.state, found.tries) == (State.PENDING, 0)


async def test_supervisors_are_kept_and_used_again(app: App) -> None:
    parent = app.command("parent", ["sh", "-c", "echo $PPID >&3"], result=int)
    async with app.worker():
        seen = {await app.result(await parent.now(), timeout=PATIENCE) for _ in range(5)}
        [supervisor] = seen
        assert start_of(supervisor) is not None
    assert start_of(supervisor) is None


async def test_a_supervisor_that_nobody_needs_ends(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisors, "IDLE_FOR", 0.05)
    parent = app.command("parent", ["sh", "-c", "echo $PPID >&3"], result=int)
    async with app.worker():
        first = await app.result(await parent.now(), timeout=PATIENCE)
        await until("it has ended", lambda: start_of(first) is None)
        assert await app.result(await parent.now(), timeout=PATIENCE) != first


async def test_the_death_of_a_supervisor_loses_the_attempt_and_leaves_nothing(app: App, tmp_path: Path) -> None:
    script = (
        f"echo $$ $PPID > {tmp_path}/$DUETIME_ATTEMPT.new; mv {tmp_path}/$DUETIME_ATTEMPT.new {tmp_path}/$DUETIME_ATTEMPT; exec sleep 1000"
    )
    waits = app.command("waits", ["sh", "-c", script], grace=0.0)
    async with app.worker():
        task = await waits.now()
        await until("it runs", (tmp_path / "1").exists)
        command, supervisor = map(int, (tmp_path / "1").read_text().split())
        os.kill(supervisor, signal.SIGKILL)
        await until("it runs again", (tmp_path / "2").exists)
        assert start_of(command) is None
        first = (await app.attempts(task))[0]
        await app.cancel(task)
        await until("it is cancelled", partial(is_in, app, task, State.CANCELLED))
    assert first.outcome == "lost"
    assert first.error is not None
    assert first.error.type == "SupervisorDied"


def test_commands_run_on_uvloop_too(app: App) -> None:
    report = app.command("report", ["sh", "-c", "echo hello; cat >&3"], payload=Backup, result=dict[str, Any])

    async def main() -> tuple[object, str]:
        async with app.worker():
            task = await report.now(name="shop")
            return await app.result(task, timeout=PATIENCE), await printed(app, task)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == ({"name": "shop", "level": 3}, "hello\n")


async def test_a_group_declares_commands_too(app: App) -> None:
    group = Handlers(prefix="nightly.")
    report = group.command("report", ["sh", "-c", "cat >&3"], payload=Backup)
    app.include(group)
    assert report.name == "nightly.report"
    async with app.worker():
        assert await app.result(await report.now(name="shop"), timeout=PATIENCE) == {"name": "shop", "level": 3}


async def test_a_schedule_runs_a_command(app: App, tmp_path: Path) -> None:
    touched = app.command("touched", ["touch", "{payload.path}"])
    app.schedule(every=1, name="soon", payload={"path": str(tmp_path / "ran")})(touched)
    async with app.worker():
        await until("it has run", (tmp_path / "ran").exists)


async def test_bad_declarations_say_what_to_change(app: App) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"argv": "pg_dump shop"}, r"\['sh', '-c', 'pg_dump shop'\]"),
        ({"argv": []}, "list of the program"),
        ({"argv": ["{payload.name}"]}, "must be written out"),
        ({"argv": ["./backup.sh"]}, "whole path"),
        ({"argv": ["true", "a\0b"]}, "NUL"),
        ({"argv": ["true", "{payload.nam}"]}, "the payload has only name, level"),
        ({"argv": ["true", "{who.name}"]}, "begins with payload"),
        ({"exits": {300: "retry"}}, "from 0 to 255"),
        ({"exits": {3: "success"}}, "succeeded, failed, fatal, retry"),
        ({"stop": "SIGNOT"}, "such as 'SIGTERM'"),
        ({"grace": -1}, "must not be negative"),
        ({"env": {"A=B": "c"}}, "environment variable"),
        ({"env": {"DUETIME_TASK": "c"}}, "given by the worker"),
        ({"keep_env": "PATH"}, "list of names"),
        ({"sandbox": {"cpu": 1}}, "must be a Sandbox"),
        ({"timeout": 0}, "timeout must be positive"),
    ]
    for options, problem in bad:
        with pytest.raises(InvalidValue, match=problem):
            app.command("bad", **{"argv": ["true"], "payload": Backup, **options})
    with pytest.raises(InvalidHandler, match="cannot be made from JSON"):
        app.command("bad", ["true"], result=App)
    assert "bad" not in app.specs


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"memory": "much"}, "512MB"),
        ({"cpu": 0}, "cpu"),
        ({"processes": 0}, "processes"),
        ({"files": 1.5}, "files"),
        ({"file_size": -1}, "file_size"),
    ],
)
def test_bad_limits_are_refused(limits: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidValue, match=problem):
        Sandbox(**limits)


async def test_submitting_checks_the_payload(app: App) -> None:
    report = app.command("report", ["true"], payload=Backup)
    with pytest.raises(InvalidPayload, match="nam is not a parameter; did you mean name"):
        await report.now(nam="shop")  # type: ignore[call-arg]
    with pytest.raises(InvalidHandler, match="not a Python function"):
        report(name="shop")
