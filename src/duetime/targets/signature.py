"""Which functions can be handlers: what their parameters look like, and where their annotations are resolved."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec

from duetime.errors import InvalidHandler
from duetime.targets.context import Context


def resolve(function: Callable[..., object], annotation: Any) -> Any:
    """Evaluate one annotation where the function was written."""
    holder = SimpleNamespace(__annotations__={"it": annotation})
    return typing.get_type_hints(holder, globalns=getattr(_code(function), "__globals__", {}), include_extras=True)["it"]


def _code(function: Callable[..., object]) -> Callable[..., object]:
    """Return the function or method behind all decorators."""
    innermost: Callable[..., object] = inspect.unwrap(_called(function))
    return innermost


def _called(function: Callable[..., object]) -> Callable[..., object]:
    """Return the function or method that a call enters first."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) or inspect.isclass(function) else type(function).__call__


def yields(function: Callable[..., object]) -> bool:
    """Return whether a function is a generator, behind all decorators."""
    code = _code(function)
    return inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code)


class Shape(msgspec.Struct, frozen=True):
    """What a function looks like as a handler; `parameters` are those that the payload fills. `yields`: it is a generator."""

    takes_context: bool
    is_async: bool
    yields: bool
    parameters: tuple[inspect.Parameter, ...]


def default_name(function: Callable[..., object]) -> str:
    """Name a handler after its function, method or class; a lambda and a partial have no name of their own."""
    name = getattr(function, "__name__", None)
    if name == "<lambda>" or isinstance(function, functools.partial):
        raise InvalidHandler('a lambda or partial has no name that could be stored; give one: app.task(name="…")(…)')
    return str(name or type(function).__name__)


def examine(name: str, function: Callable[..., object]) -> Shape:
    """Return what a function looks like as a handler; InvalidHandler says what to change if it cannot be one."""
    if not callable(function) or inspect.isclass(function):
        raise InvalidHandler(f"{name}: a handler must be a function, a bound method or a callable object, got {function!r}")
    code = _code(function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise InvalidHandler(f"{name}: its parameters cannot be read ({error}); wrap it in a function of your own") from None
    takes_context = bool(parameters) and _is_context(name, function, parameters[0])
    payload = parameters[1:] if takes_context else parameters
    for parameter in payload:
        _refuse_parameter(name, parameter)
    # a decorator around an `async def` is mostly a plain function that hands the coroutine on
    is_async = inspect.iscoroutinefunction(_called(function)) or inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code)
    return Shape(takes_context, is_async, yields(function), tuple(payload))


def _is_context(name: str, function: Callable[..., object], first: inspect.Parameter) -> bool:
    if first.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return False
    if first.name in ("self", "cls"):
        raise InvalidHandler(
            f"{name}: its first parameter is {first.name!r}, but a method in a class body has no object yet; "
            f"declare the bound method of an object instead: app.task(object.{getattr(function, '__name__', 'method')})"
        )
    annotation = first.annotation
    if isinstance(annotation, str):
        text = annotation
        try:
            annotation = resolve(function, text)
        except Exception:  # only the type checker knows the name: the text is used instead
            return text.rpartition(".")[2] == "Context"
    if annotation is inspect.Parameter.empty or annotation is Any:
        raise InvalidHandler(
            f"{name}: annotate the first parameter, {first.name!r}: `{first.name}: Context` if it is the context, otherwise the "
            "type of the argument. Without a type (or with Any) it could be either"
        )
    return annotation is Context


def _refuse_parameter(name: str, parameter: inspect.Parameter) -> None:
    match parameter.kind:
        case inspect.Parameter.VAR_POSITIONAL:
            raise InvalidHandler(f"{name}: *{parameter.name} cannot be stored by name; take a list instead: {parameter.name}: list[…]")
        case inspect.Parameter.VAR_KEYWORD:
            raise InvalidHandler(f"{name}: **{parameter.name} would accept any misspelling; take a dict instead: {parameter.name}: dict[…]")
        case inspect.Parameter.POSITIONAL_ONLY:
            raise InvalidHandler(f"{name}: {parameter.name} is positional-only, but payloads carry names; move it behind the `/`")
    if parameter.annotation is Context or parameter.annotation in ("Context", "duetime.Context"):
        raise InvalidHandler(f"{name}: the context {parameter.name!r} must be the first parameter")
