"""Tracebacks as people need them: the code that they wrote instead of the worker around it, bounded, and where it failed.

No values of variables are in them, only lines of source: payloads and secrets do not get into logs and stores that way.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType

MAX_TRACEBACK = 16_384
MAX_LOCATION = 300
MAX_PART = 4_000  # characters of one frame, or of one exception's message: the frames of a huge message must not be cut away
CUT = "… (cut)\n"

_DUETIME, _STANDARD = "duetime", "standard library"
_OWN_FOLDER = str(Path(__file__).resolve().parents[1]) + os.sep
_STANDARD_FOLDERS = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_INSTALLED = ("site-packages", "dist-packages")


def trace_of(error: BaseException) -> tuple[str, str]:
    """Return the traceback of an exception as text, and where it was raised; both empty if it cannot be read."""
    try:
        return _text(error), location(error)
    except Exception:  # an exception whose attributes raise, or a RecursionError at the very end of the stack
        return "", ""


def own_part(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of the worker before the user's code; all of it if there is none of that."""
    part = trace
    while part is not None:
        if _is_users(origin(part.tb_frame.f_code.co_filename)):
            return part
        part = part.tb_next
    return trace


def location(error: BaseException) -> str:
    """Return where an exception was raised, as `shop/tasks.py:42 in charge`: the last line of the user's own code, '' if there is none.

    Of an exception group it is where its first exception was raised, and of one that Duetime raised because of another where that was.
    """
    first = error
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    for each in (first, first.__cause__, error):
        frame = None if each is None or each.__traceback__ is None else _last_own(_frames(each.__traceback__))
        if frame is not None:
            return _shown(*frame)
    return ""


def _frames(trace: TracebackType) -> Iterator[tuple[str, int, str]]:
    part: TracebackType | None = trace
    while part is not None:
        code = part.tb_frame.f_code
        yield code.co_filename, part.tb_lineno or code.co_firstlineno, code.co_name
        part = part.tb_next


def _last_own(frames: Iterable[tuple[str, int, str]]) -> tuple[str, int, str] | None:
    """Return the last frame of the program itself; libraries that it calls come after it.

    A program that is installed like its libraries is known by the package of its first frame, which is that of the handler.
    """
    users = [(origin(frame[0]), frame) for frame in frames if _is_users(origin(frame[0]))]
    if not users:
        return None
    package = "" if any(not found for found, _ in users) else users[0][0]
    return [frame for found, frame in users if found == package][-1]


def _shown(file: str, line: int, function: str) -> str:
    try:
        folder = os.getcwd() + os.sep
    except OSError:  # it was removed
        folder = os.sep
    shown = file.removeprefix(folder) if len(folder) > 1 else file
    end = f":{line} in {function[:100]}"
    return shown[-(MAX_LOCATION - len(end)) :] + end


@lru_cache(maxsize=4_096)
def origin(file: str) -> str:
    """Return to what a source file belongs: Duetime, the standard library, an installed package by its name, or '' for all others.

    The examples of the command line are handlers like any others.
    """
    if file.startswith(_OWN_FOLDER) and not file.startswith(f"{_OWN_FOLDER}cli{os.sep}"):
        return _DUETIME
    if file.startswith("<frozen "):
        return _STANDARD
    parts = Path(file).parts
    for folder in _INSTALLED:
        if folder in parts[:-1]:
            return f"package {parts[parts.index(folder) + 1]}"
    return _STANDARD if file.startswith(_STANDARD_FOLDERS) else ""


def _is_users(found: str) -> bool:
    return found not in (_DUETIME, _STANDARD)


def _text(error: BaseException) -> str:
    # lines of source are looked up when it is formatted: not those of frames that are left out
    whole = traceback.TracebackException(type(error), error, error.__traceback__, lookup_lines=False, compact=True)
    for each in _all_of(whole):
        each.stack[:] = _without_worker(each.stack)
    text = "".join(part if len(part) <= MAX_PART else part[:MAX_PART] + CUT for part in whole.format())
    if len(text) > MAX_TRACEBACK:
        text = text[-MAX_TRACEBACK:]
        text = CUT + text[text.find("\n") + 1 :]
    return text


def _all_of(whole: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Yield an exception, those that led to it, and those in its groups."""
    left = [whole]
    while left:
        each = left.pop()
        yield each
        left += [other for other in (each.__cause__, each.__context__, *(each.exceptions or ())) if other is not None]


def _without_worker(frames: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Leave out what called the user's code, and Duetime's own frames between parts of it. What it called itself stays."""
    origins = [origin(frame.filename) for frame in frames]
    users = [index for index, found in enumerate(origins) if _is_users(found)]
    if not users:
        return list(frames)
    last = max(index for index, found in enumerate(origins) if found != _DUETIME)
    return [frame for index, frame in enumerate(frames) if index >= users[0] and (origins[index] != _DUETIME or index > last)]
