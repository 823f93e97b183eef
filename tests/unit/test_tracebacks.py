"""What is stored of an exception: the user's own code, where it failed, bounded, and never a value of a variable."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from duetime.model.task import ErrorInfo
from duetime.targets.context import Context, Resources
from duetime.targets.endings import MAX_MESSAGE, describe
from duetime.targets.python.middleware import Next, with_middleware
from duetime.targets.tracebacks import MAX_LOCATION, MAX_TRACEBACK, own_part
from duetime.worker.steps import unambiguous

HERE = os.path.relpath(__file__)


def caught(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


def described(function: Callable[[], object]) -> ErrorInfo:
    return describe(caught(function))


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


def module_from(path: Path, source: str) -> ModuleType:
    """Run a source file as a module, as if it had been installed there."""
    path.parent.mkdir(parents=True)
    path.write_text(textwrap.dedent(source))
    module = ModuleType(path.stem)
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


def refuse() -> None:
    raise ValueError("card refused")  # refused here


def stop() -> None:
    raise StopIteration  # stopped here


def parse() -> None:
    json.loads("{")  # parsed here


def test_the_location_is_file_line_and_function() -> None:
    assert described(refuse).location == f"{HERE}:{line_of('refused here')} in refuse"


def test_a_failure_inside_the_standard_library_is_located_in_the_code_that_called_it() -> None:
    error = described(parse)
    assert error.location == f"{HERE}:{line_of('parsed here')} in parse"
    assert "json/decoder.py" in error.traceback  # what it called stays in the traceback


def test_a_failure_inside_an_installed_library_is_located_in_the_code_that_called_it(tmp_path: Path) -> None:
    library = module_from(tmp_path / "site-packages" / "lib" / "client.py", "def get():\n    raise OSError('refused')\n")

    def call() -> None:
        library.get()  # called here

    assert described(call).location == f"{HERE}:{line_of('called here')} in call"


def test_a_program_that_is_installed_itself_is_told_from_its_libraries(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    library = module_from(site / "lib" / "client.py", "def get():\n    raise OSError('refused')\n")
    program = module_from(site / "shop" / "tasks.py", "def run(get):\n    return charge(get)\n\ndef charge(get):\n    get()\n")
    # this test's own frame is left out, as the worker's are
    error = caught(lambda: program.run(library.get))
    assert error.__traceback__ is not None
    while not error.__traceback__.tb_frame.f_code.co_filename.startswith(str(site)):
        assert error.__traceback__.tb_next is not None
        error.__traceback__ = error.__traceback__.tb_next
    assert describe(error).location == f"{site}/shop/tasks.py:5 in charge"


async def test_frames_of_duetime_around_and_between_the_users_code_are_left_out() -> None:
    async def middleware(context: Context, call_next: Next) -> object:
        return await call_next()

    async def handler() -> None:
        refuse()

    context = Context.__new__(Context)
    try:
        await with_middleware([middleware], context, handler)
    except ValueError as error:
        found = describe(error)
    assert "in middleware\n" in found.traceback
    assert "in handler\n" in found.traceback
    assert "duetime/targets" not in found.traceback


def test_what_the_user_called_of_duetime_is_kept() -> None:
    def handler() -> None:
        Resources().get(int)  # asked here

    error = described(handler)
    assert error.location == f"{HERE}:{line_of('asked here')} in handler"
    assert "duetime/targets/context.py" in error.traceback


def test_an_exception_raised_by_duetime_alone_keeps_its_frames() -> None:
    error = caught(lambda: Resources().get(int))
    trace = error.__traceback__
    while trace is not None and "duetime/targets" not in trace.tb_frame.f_code.co_filename:
        trace = trace.tb_next
    found = describe(error.with_traceback(trace))
    assert found.location == ""
    assert "in get\n" in found.traceback


def test_own_part_begins_with_the_users_code() -> None:
    error = caught(refuse)
    part = own_part(error.__traceback__)
    assert part is not None
    assert part.tb_frame.f_code.co_filename == __file__
    assert own_part(None) is None


def test_chained_exceptions_are_all_shown_and_the_last_one_is_located() -> None:
    def chained() -> None:
        try:
            parse()
        except ValueError as error:
            raise RuntimeError("the answer was not JSON") from error  # chained here

    error = described(chained)
    assert error.location == f"{HERE}:{line_of('chained here')} in chained"
    assert "JSONDecodeError" in error.traceback
    assert "direct cause" in error.traceback


def test_an_exception_that_duetime_raised_because_of_another_is_located_there() -> None:
    assert describe(unambiguous(caught(stop))).location == f"{HERE}:{line_of('stopped here')} in stop"


async def test_an_exception_group_is_located_at_its_first_exception() -> None:
    async def child() -> None:
        refuse()

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
    except BaseExceptionGroup as error:
        found = describe(error)
    assert found.type == "ExceptionGroup"
    assert found.location == f"{HERE}:{line_of('refused here')} in refuse"
    assert "card refused" in found.traceback


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Bare(Exception):
    def __getattribute__(self, name: str) -> object:
        raise RuntimeError("nothing to see")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x" * 10_000_000),
        ValueError("\n" * 1_000_000),
        ValueError("\udcff lone \x00 nul \x1b[31m red"),
        ValueError("Grüße, 世界 🦆"),
        Mute(),
        type("Odd\n" * 1_000, (Exception,), {})("odd"),
        ExceptionGroup("many", [ValueError("x" * 10_000_000), Mute()]),
    ],
    ids=["huge", "lines", "odd", "unicode", "mute", "type", "group"],
)
def test_odd_exceptions_are_described_in_bounds(error: Exception) -> None:
    def raises() -> None:
        raise error  # raised here

    found = described(raises)
    assert f"{HERE}:{line_of('raised here')} in raises" in found.location
    assert "raises\n    raise error" in found.traceback.replace("  | ", "")  # the frames survive a huge message
    assert len(found.type) <= 200
    assert len(found.message) <= MAX_MESSAGE
    assert len(found.traceback) <= MAX_TRACEBACK + 100
    for text in (found.type, found.message, found.traceback, found.location):
        text.encode()  # no surrogates


def test_an_exception_that_shows_nothing_still_has_a_type() -> None:
    found = described(lambda: (_ for _ in ()).throw(Bare()))
    assert found.type == "Bare"


def test_the_end_of_a_long_traceback_is_kept() -> None:
    def deep(depth: int) -> None:
        try:
            refuse()
        except ValueError as error:
            if depth:
                try:
                    deep(depth - 1)
                except ValueError:
                    raise RuntimeError(f"level {depth} of {'x' * 1_000}") from error
            raise

    found = described(lambda: deep(80))
    assert found.traceback.startswith("… (cut)\n")
    assert found.traceback.rstrip().endswith("x" * 1_000)
    assert len(found.traceback) <= MAX_TRACEBACK + 10


def test_values_of_variables_are_not_shown() -> None:
    def charge(card: str) -> None:
        secret = card[::-1]
        raise ValueError(f"refused after {len(secret)} digits")

    found = described(lambda: charge("4111-" + "1111"))
    assert "4111-1111" not in found.traceback
    assert "1111-1114" not in found.traceback


def test_the_location_is_bounded(tmp_path: Path) -> None:
    function = "f" * 2_000
    module = module_from(tmp_path / "long" / "tasks.py", f"def {function}():\n    raise ValueError\n")
    location = described(getattr(module, function)).location
    assert len(location) <= MAX_LOCATION
    assert "tasks.py:2 in fff" in location


def test_a_removed_working_folder_changes_nothing(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    program = """
        import os; os.rmdir(os.getcwd())
        from duetime.targets.endings import describe
        try:
            1 / 0
        except ZeroDivisionError as error:
            print(describe(error).location)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=gone, capture_output=True, text=True, check=True)
    assert ended.stdout == "<string>:5 in <module>\n"
