"""The payloads of handlers that are not Python functions, with a declared type or without one."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from duetime.errors import InvalidHandler
from duetime.targets.payload import FunctionPayloads, OpenPayloads, to_json
from duetime.targets.signature import examine
from duetime.targets.spec import Payloads

ABSENT: Any = inspect.Parameter.empty


class PlainPayloads(Payloads, Protocol):
    """Payloads that can be read as plain JSON, for templates."""

    @property
    def names(self) -> list[str] | None:
        """The names that a payload can have; None if it can have any."""
        ...

    def plain(self, payload: str) -> Mapping[str, Any]:
        """Return a stored payload as plain JSON, with the defaults of what it leaves out; UnfitPayload if it does not fit."""
        ...


class AnyPayloads(OpenPayloads):
    """Any keyword arguments that are JSON."""

    names = None

    def plain(self, payload: str) -> Mapping[str, Any]:
        return self.decode(payload)


class TypedPayloads(FunctionPayloads):
    """The parameters of a class or function that is never called: it only says what a payload has."""

    def __init__(self, name: str, payload: Callable[..., object], result: Any) -> None:
        parameters = _parameters(name, payload)
        super().__init__(name, payload, parameters, result)
        self.names = [parameter.name for parameter in parameters]
        given = {parameter.name: parameter.default for parameter in parameters if parameter.default is not ABSENT}
        self._defaults: dict[str, Any] = {}
        for each, default in given.items():
            try:
                self._defaults[each] = msgspec.to_builtins(default, enc_hook=to_json)
            except (TypeError, ValueError):  # such as the default_factory of a field: then a payload without it has none
                continue

    def plain(self, payload: str) -> Mapping[str, Any]:
        decoded: dict[str, Any] = msgspec.to_builtins(self.decode(payload), enc_hook=to_json)
        return {**self._defaults, **decoded}


def _parameters(name: str, payload: Callable[..., object]) -> list[inspect.Parameter]:
    if not inspect.isclass(payload):
        return list(examine(name, payload).parameters)
    try:
        hints = typing.get_type_hints(payload, include_extras=True)
        parameters = inspect.signature(payload).parameters.values()
    except (TypeError, ValueError, NameError) as error:
        raise InvalidHandler(f"{name}: the fields of payload={payload.__name__} cannot be read: {error}") from None
    return [each.replace(annotation=hints.get(each.name, each.annotation), kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]


def payloads_of(name: str, payload: Callable[..., object] | None, result: Any) -> PlainPayloads:
    """Return the payloads of a handler that is declared with `payload=` and `result=`."""
    if payload is None:
        return AnyPayloads(name, Any if result is None else result)
    if not callable(payload):
        raise InvalidHandler(f"{name}: payload is a class or a function whose parameters the payload has, got {payload!r}")
    payloads = TypedPayloads(name, payload, Any if result is None else result)
    payloads.check()
    return payloads
