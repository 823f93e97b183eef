"""Let a test name the capabilities that it proves: `@pytest.mark.covers("ATF.4", "REQ.14")`.

A claim that nobody could rely on stops the run before any test starts: an unknown ID, more than three IDs (such a test proves
none of them in particular), a test that is skipped or expected to fail, or one that may return before its end.
"""

import ast
import functools
import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.coverage import FEATURES, ROOT, load_features

MOST_CLAIMS = 3
STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}

_opened: set[str] = set()  # the stores that this process has opened during the present test


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--coverage-map", metavar="FILE", type=Path, help="write, as JSON, what each marked test covers, and its digest")
    parser.addoption(
        "--coverage-record", metavar="FILE", type=Path, help="write, as lines of JSON, which marked tests passed, and on which stores"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--coverage-record") is not None:
        from duetime.store.postgres.store import PostgresStore
        from duetime.store.sqlite.store import SqliteStore

        for kind, store in ((STORES["sqlite"], SqliteStore), (STORES["postgres"], PostgresStore)):
            store.open = _noting(kind, store.open)  # type: ignore[method-assign]


def _noting(kind: str, opens: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(opens)
    def noted(*arguments: Any, **options: Any) -> Any:
        _opened.add(kind)
        return opens(*arguments, **options)

    return noted


@pytest.hookimpl(tryfirst=True)  # before -k and -m deselect: a wrong claim is wrong whatever runs today
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    features = load_features()
    found: dict[str, tuple[list[str], str]] = {}
    problems: dict[str, None] = {}  # a set that keeps its order
    for item in items:
        if item.get_closest_marker("covers") is None:
            continue
        claims = _claims(item)
        test = _name(item)
        problems.update((f"{test} {problem}", None) for problem in _problems(item, claims, features))
        found[test] = (sorted(map(str, set(claims))), _digest(item, claims))
    if problems:
        raise pytest.UsageError("\n".join(problems))
    target: Path | None = config.getoption("--coverage-map")
    if target is not None:
        target.write_text(json.dumps(found), encoding="utf-8")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _opened.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    record: Path | None = item.config.getoption("--coverage-record")
    if record is not None and item.get_closest_marker("covers") is not None:
        with record.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps((_name(item), report.passed, sorted(_opened | _stores_of(item)))) + "\n")
    return report


def _stores_of(item: pytest.Item) -> set[str]:
    """Return the stores that a test names in its parameters and fixtures: what other processes open is not seen here."""
    names = [item.name.partition("[")[2], *(item.fixturenames if isinstance(item, pytest.Function) else [])]
    named = {store for word, store in STORES.items() if any(word in name for name in names)}
    starts_programs = {"tests/cli/", "tests/chaos/"} & {item.nodeid[: len(folder)] for folder in ("tests/cli/", "tests/chaos/")}
    return named or (
        {STORES["sqlite"]} if starts_programs and not _opened else set()
    )  # their programs use a file unless they say otherwise


def _name(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _claims(item: pytest.Item) -> list[object]:
    return [claim for marker in item.iter_markers("covers") for claim in marker.args]


def _digest(item: pytest.Item, claims: list[object]) -> str:
    return hashlib.sha256((_source(item) + repr(sorted(map(str, claims)))).encode()).hexdigest()[:12]


def _source(item: pytest.Item) -> str:
    return textwrap.dedent(inspect.getsource(inspect.unwrap(item.function))) if isinstance(item, pytest.Function) else ""


def _returns(source: str) -> bool:
    """Return whether a test itself, and not a function inside of it, has a `return`."""
    waiting: list[ast.AST] = list(ast.parse(source).body[0].__dict__.get("body", ())) if source else []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return False


def _problems(item: pytest.Item, claims: list[object], features: dict[str, str]) -> Iterator[str]:
    for claim in claims:
        if claim not in features:
            yield f"covers {claim!r}, which is unknown; expected an ID of {FEATURES.relative_to(ROOT)}, such as 'ATF.4'"
    if len(set(claims)) > MOST_CLAIMS:
        yield f"covers {len(set(claims))} capabilities; at most {MOST_CLAIMS} are allowed, split the test"
    if claims and any(item.iter_markers("skip")):
        yield "covers a capability but is skipped; remove one of the two marks"
    if claims and any(item.iter_markers("xfail")):
        yield "covers a capability but is expected to fail; remove one of the two marks"
    if claims and _returns(_source(item)):
        yield "covers a capability but has a return: a test that returns early proves nothing; let it go to its end"
    if not claims:
        yield "has a covers mark without IDs; name at least one"
