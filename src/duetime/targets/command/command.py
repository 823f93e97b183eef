"""A command as a handler declares it: what runs, with which environment, within which limits, and what its exit codes mean."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import msgspec

from duetime.clock import Seconds, to_seconds
from duetime.errors import InvalidValue
from duetime.model.artifacts import Reference, read_reference
from duetime.model.secrets import Secret
from duetime.targets.spec import HandlerSpec
from duetime.targets.templates import ARTIFACT, JsonTemplate, TextTemplate
from duetime.targets.typed import PlainPayloads

if TYPE_CHECKING:
    from duetime.targets.host import TargetHost
    from duetime.targets.target import Target

Exit: TypeAlias = Literal["succeeded", "failed", "fatal", "retry"]
Size: TypeAlias = int | str

DEFAULT_GRACE = 10.0
DEFAULT_KEEP_ENV = ("PATH",)
DEFAULT_EXITS: Mapping[int, Exit] = {0: "succeeded", 75: "retry"}  # 75: EX_TEMPFAIL of sysexits.h
PAYLOAD = "{payload}"

_UNITS = {"": 1, "B": 1, **{f"{letter}B": 1_000**power for power, letter in enumerate("KMGT", 1)}}
_UNITS |= {f"{letter}IB": 1_024**power for power, letter in enumerate("KMGT", 1)}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_VARIABLE = re.compile(r"[^=\0]+")


class Sandbox(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a command may use: seconds of CPU time, memory, processes, open files, and the size of a file that it writes.

    Sizes are bytes, or texts such as "1GB" and "512MiB". Where the worker may make control groups (`duetime doctor` tells), `memory` and
    `processes` bound all of a command together; elsewhere `memory` bounds each of its processes, and `processes` is added to those that
    the user has when the command starts, and does not bind root. A command in a sandbox cannot gain privileges (sudo, set-uid).
    """

    cpu: Seconds | None = None
    memory: Size | None = None
    processes: int | None = None
    files: int | None = None
    file_size: Size | None = None

    def __post_init__(self) -> None:
        self.limits()

    def limits(self) -> dict[str, int]:
        """Return the limits that are set, in seconds, bytes and numbers."""
        found = {
            "cpu": None if self.cpu is None else max(1, round(to_seconds(self.cpu, "cpu"))),
            "processes": self.processes,
            "files": self.files,
            "file_size": None if self.file_size is None else _bytes(self.file_size, "file_size"),
            "memory": None if self.memory is None else _bytes(self.memory, "memory"),
        }
        if self.cpu is not None and to_seconds(self.cpu, "cpu") <= 0:
            raise InvalidValue(f"cpu must be positive seconds, got {self.cpu!r}")
        for name in ("processes", "files"):
            value = found[name]
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidValue(f"{name} must be a whole number of at least 1, got {value!r}")
        return {name: value for name, value in found.items() if value is not None}


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. `command` checks it."""

    argv: tuple[TextTemplate, ...]
    text: str  # for people
    stdin: JsonTemplate | None
    env: Mapping[str, str | Secret]
    keep_env: tuple[str, ...]
    sandbox: Sandbox | None
    exits: Mapping[int, Exit]
    stop: signal.Signals
    grace: float
    result: Any  # the type of the result; None: any
    artifact: Reference | None = None

    @property
    def kind(self) -> str:
        return "command"

    def open(self, handler: HandlerSpec, host: TargetHost) -> Target:
        from duetime.targets.command.target import CommandTarget  # a program that only submits tasks does not need it

        return CommandTarget(self, cast(PlainPayloads, handler.payloads), handler, host)


def command(
    name: str,
    argv: Sequence[str] | None,
    *,
    artifact: str | None = None,
    stdin: Any,
    env: Mapping[str, str | Secret],
    keep_env: Sequence[str],
    sandbox: Sandbox | None,
    exits: Mapping[int, Exit],
    stop: str | int,
    grace: Seconds,
    result: Any,
    names: Sequence[str] | None,
) -> Command:
    """Check what was declared; InvalidValue says what to change. `names` are those that a payload can have, if that is known."""
    reference = None if artifact is None else _artifact(name, artifact)
    if argv is None and reference is not None:
        argv = ()
    elif isinstance(argv, str) or not argv:
        got = "; or name an artifact that says what to run: 'monthly'" if argv is None else f", got {argv!r}"
        hint = f". To have a shell read it, say so: ['sh', '-c', {argv!r}]" if argv else ""
        raise InvalidValue(f"{name}: argv is a list of the program and its arguments, such as ['pg_dump', '-d', 'shop']{got}{hint}")
    return Command(
        argv=arguments(name, argv, names, artifact=reference is not None),
        text=described(argv, artifact),
        artifact=reference,
        stdin=None if stdin is None else JsonTemplate(stdin, f"{name}: stdin", names),
        env=_environment(name, env),
        keep_env=tuple(_variable(name, each) for each in _list(name, "keep_env", keep_env)),
        sandbox=_sandbox(name, sandbox),
        exits={**DEFAULT_EXITS, **_exits(name, exits)},
        stop=_signal(name, stop),
        grace=_grace(name, grace),
        result=result,
    )


def described(argv: Sequence[str], artifact: str | None) -> str:
    """Return what runs, in one line for people."""
    ran = shlex.join(argv)
    return ran if artifact is None else f"{ran} of the artifact {artifact}" if argv else f"the artifact {artifact}"


def arguments(name: str, argv: Sequence[str], names: Sequence[str] | None, *, artifact: bool) -> tuple[TextTemplate, ...]:
    """Check the program and its arguments. One of an artifact may be named by `{artifact}` and by a path in it."""
    templates = tuple(TextTemplate(each, f"{name}: argument {at}", names, artifact=artifact) for at, each in enumerate(argv))
    for each in argv:
        if "\0" in each:
            raise InvalidValue(f"{name}: an argument cannot contain a NUL character, got {each!r}")
    if not templates:
        return ()
    program = templates[0].parts
    if not program or not all(isinstance(part, str) or part.root == ARTIFACT for part in program):
        raise InvalidValue(f"{name}: the program must be written out, without references and not empty, got {argv[0]!r}")
    first = program[0]
    if isinstance(first, str) and "/" in first and not first.startswith("/") and not artifact:
        raise InvalidValue(f"{name}: a command runs in an empty folder of its own, so write the whole path of {first!r}")
    return templates


def _artifact(name: str, artifact: str) -> Reference:
    try:
        return read_reference(artifact)
    except InvalidValue as error:
        raise InvalidValue(f"{name}: {error}") from None


def _environment(name: str, env: Mapping[str, str | Secret]) -> dict[str, str | Secret]:
    for variable, value in env.items():
        _variable(name, variable)
        if variable.startswith("DUETIME_"):
            raise InvalidValue(f"{name}: env names {variable}, but DUETIME_… is given by the worker")
        if not isinstance(value, Secret) and (not isinstance(value, str) or "\0" in value):
            raise InvalidValue(f"{name}: {variable} in env must be text without NUL, or a Secret, got {value!r}")
    return dict(env)


def _variable(name: str, variable: object) -> str:
    if not isinstance(variable, str) or not _VARIABLE.fullmatch(variable):
        raise InvalidValue(f"{name}: {variable!r} is not the name of an environment variable")
    return variable


def _list(name: str, what: str, values: Sequence[str]) -> Sequence[str]:
    if isinstance(values, str):
        raise InvalidValue(f"{name}: {what} is a list of names, got the text {values!r}")
    return values


def _sandbox(name: str, sandbox: Sandbox | None) -> Sandbox | None:
    if sandbox is not None and not isinstance(sandbox, Sandbox):
        raise InvalidValue(f"{name}: sandbox must be a Sandbox, for example Sandbox(memory='1GB'), got {sandbox!r}")
    return sandbox


def _exits(name: str, exits: Mapping[int, Exit]) -> Mapping[int, Exit]:
    for code, meaning in exits.items():
        if isinstance(code, bool) or not isinstance(code, int) or not 0 <= code <= 255:
            raise InvalidValue(f"{name}: an exit code is a number from 0 to 255, got {code!r}")
        if meaning not in get_args(Exit):
            raise InvalidValue(f"{name}: exit code {code} must mean one of {', '.join(get_args(Exit))}, got {meaning!r}")
    return exits


def _signal(name: str, stop: str | int) -> signal.Signals:
    try:
        return signal.Signals[stop] if isinstance(stop, str) else signal.Signals(stop)
    except (KeyError, ValueError):
        raise InvalidValue(f"{name}: stop must be a signal such as 'SIGTERM' or 'SIGINT', got {stop!r}") from None


def _grace(name: str, grace: Seconds) -> float:
    seconds = to_seconds(grace, "grace")
    if seconds < 0:
        raise InvalidValue(f"{name}: grace must not be negative, got {grace}")
    return seconds


def _bytes(size: Size, what: str) -> int:
    found = _SIZE.fullmatch(str(size)) if not isinstance(size, bool) else None
    unit = None if found is None else _UNITS.get(found[2].upper())
    if found is None or unit is None or (count := int(float(found[1]) * unit)) < 1:
        raise InvalidValue(f"{what} must be a number of bytes or a text such as '512MB' or '1GiB', got {size!r}")
    return count
