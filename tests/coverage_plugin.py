"""Let a test name the capabilities that it proves: `@pytest.mark.covers("ATF.4", "REQ.14")`.

A claim that nobody could rely on stops the run before any test starts: an unknown ID, more than three IDs (such a test proves
none of them in particular), or a test that is skipped or expected to fail.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.coverage import FEATURES, ROOT, load_features

MOST_CLAIMS = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--coverage-map", metavar="FILE", type=Path, help="write, as JSON, which tests cover which capability")


@pytest.hookimpl(tryfirst=True)  # before -k and -m deselect: a wrong claim is wrong whatever runs today
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    features = load_features()
    tests_of: dict[str, set[str]] = {}
    problems: dict[str, None] = {}  # a set that keeps its order
    for item in items:
        claims = [claim for marker in item.iter_markers("covers") for claim in marker.args]
        test = item.nodeid.partition("[")[0]
        problems.update((f"{test} {problem}", None) for problem in _problems(item, claims, features))
        for claim in claims:
            tests_of.setdefault(str(claim), set()).add(test)
    if problems:
        raise pytest.UsageError("\n".join(problems))
    target: Path | None = config.getoption("--coverage-map")
    if target is not None:
        target.write_text(json.dumps({feature: sorted(tests) for feature, tests in sorted(tests_of.items())}), encoding="utf-8")


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
    if not claims and any(item.iter_markers("covers")):
        yield "has a covers mark without IDs; name at least one"
