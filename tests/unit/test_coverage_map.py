import json
from pathlib import Path

import pytest

from tools.coverage import Claim, Pass, load_features, outdated, passes, proofs, read_passed, render, write_passed


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """An empty test suite that has the marker `covers` and nothing else of ours."""
    pytester.makeini("[pytest]\nmarkers = covers(*ids)\n")
    return pytester


def collect(suite: pytest.Pytester, source: str, *arguments: str) -> pytest.RunResult:
    suite.makepyfile(test_claims=f"import pytest\n\n{source}")
    return suite.runpytest_inprocess(
        "--collect-only", "-p", "tests.coverage_plugin", "-p", "no:asyncio", "-p", "no:randomly", "-p", "no:timeout", *arguments
    )


def test_an_unknown_id_stops_the_run_and_is_named(suite: pytest.Pytester) -> None:
    result = collect(suite, "@pytest.mark.covers('ATF.99')\ndef test_it(): pass\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_claims.py::test_it covers 'ATF.99', which is unknown; expected an ID of tools/features.toml*"])


def test_four_ids_stop_the_run(suite: pytest.Pytester) -> None:
    result = collect(suite, "@pytest.mark.covers('ATF.1', 'ATF.2', 'ATF.3', 'ATF.4')\ndef test_it(): pass\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it covers 4 capabilities; at most 3 are allowed*"])


def test_four_ids_in_several_marks_stop_the_run(suite: pytest.Pytester) -> None:
    source = """
pytestmark = pytest.mark.covers('ATF.1', 'ATF.2')

@pytest.mark.covers('ATF.3', 'ATF.4')
def test_it(): pass
"""
    assert collect(suite, source).ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize("mark", ["skip", "xfail"])
def test_a_test_that_cannot_fail_covers_nothing(suite: pytest.Pytester, mark: str) -> None:
    result = collect(suite, f"@pytest.mark.{mark}\n@pytest.mark.covers('ATF.1')\ndef test_it(): pass\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it covers a capability but is *"])


def test_a_mark_without_ids_stops_the_run(suite: pytest.Pytester) -> None:
    assert collect(suite, "@pytest.mark.covers()\ndef test_it(): pass\n").ret == pytest.ExitCode.USAGE_ERROR


def test_a_wrong_claim_is_found_although_its_test_is_deselected(suite: pytest.Pytester) -> None:
    source = "@pytest.mark.covers('ATF.99')\ndef test_it(): pass\n\ndef test_other(): pass\n"
    assert collect(suite, source, "-k", "test_other").ret == pytest.ExitCode.USAGE_ERROR


def test_a_test_that_may_return_early_covers_nothing(suite: pytest.Pytester) -> None:
    source = """
@pytest.mark.covers('ATF.1')
def test_it():
    def inner():
        return 1
    if inner():
        return
"""
    result = collect(suite, source)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it covers a capability but has a return*"])
    assert collect(suite, source.replace("return\n", "pass\n")).ret == pytest.ExitCode.OK


def test_the_map_names_each_test_once_with_a_digest_of_its_text(suite: pytest.Pytester, tmp_path: Path) -> None:
    target = tmp_path / "map.json"
    source = """
@pytest.mark.covers('ATF.4', 'REQ.14')
@pytest.mark.parametrize('store', ['sqlite', 'postgres'])
def test_gates(store): pass

@pytest.mark.covers('ATF.4')
def test_drop(): pass

def test_without_claims(): pass
"""

    def digests(text: str) -> dict[str, str]:
        assert collect(suite, text, "--coverage-map", str(target)).ret == pytest.ExitCode.OK
        found = {test.rpartition("/")[2]: claim for test, claim in json.loads(target.read_text()).items()}
        assert {test: claims for test, (claims, _) in found.items()} == {
            "test_claims.py::test_drop": ["ATF.4"],
            "test_claims.py::test_gates": ["ATF.4", "REQ.14"],
        }
        return {test: digest for test, (_, digest) in found.items()}

    first = digests(source)
    changed = digests(source.replace("test_drop(): pass", "test_drop(): assert True"))
    assert [test for test in first if first[test] != changed[test]] == ["test_claims.py::test_drop"]


def test_only_what_has_passed_as_it_stands_is_shown_with_its_stores() -> None:
    claims = {"a::one": Claim(["ATF.4"], "11"), "a::two": Claim(["ATF.4", "ATF.5"], "22"), "a::three": Claim(["ATF.5"], "33")}
    passed = {"a::one": Pass("11", "SQLite,PostgreSQL"), "a::two": Pass("21", "SQLite"), "a::gone": Pass("44", "")}
    assert read_passed(write_passed(passed)) == passed
    assert outdated(claims, passed) == ["a::three", "a::two"]
    assert proofs(claims, passed) == {"ATF.4": ["`a::one` (SQLite, PostgreSQL)"]}


def test_a_test_that_failed_once_has_not_passed(suite: pytest.Pytester, tmp_path: Path) -> None:
    record = tmp_path / "passed.jsonl"
    source = """
@pytest.mark.covers('ATF.4')
@pytest.mark.parametrize('store', ['sqlite', 'postgres'])
def test_gates(store): pass

@pytest.mark.covers('ATF.4')
@pytest.mark.parametrize('number', [1, 2])
def test_drop(number): assert number == 1
"""
    suite.makepyfile(test_claims=f"import pytest\n\n{source}")
    suite.runpytest_inprocess(
        "-p", "tests.coverage_plugin", "-p", "no:asyncio", "-p", "no:randomly", "-p", "no:timeout", "--coverage-record", str(record)
    )
    assert passes(map(json.loads, record.read_text().splitlines())) == {"test_claims.py::test_gates": "SQLite,PostgreSQL"}


def test_the_page_has_one_row_per_capability() -> None:
    features = load_features()
    page = render(features, {"ATF.4": ["`tests/a.py::test_one`", "`tests/b.py::test_two`"]}, {})
    rows = [line.strip("|").split(" | ") for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| ID", "| ---"))]
    assert len(rows) == 191
    assert [row[0].strip() for row in rows] == list(features)
    assert {len(row) for row in rows} == {3}
    assert "`tests/a.py::test_one`<br>`tests/b.py::test_two` |" in page
    assert page.count("| not yet |") == 190


def test_a_note_stands_with_its_capability() -> None:
    page = render({"ATF.4": "Gates"}, {}, {"ATF.4": "Without levers."})
    assert "| ATF.4 | Gates<br>*Without levers.* | not yet |" in page
    with pytest.raises(ValueError, match=r"a note on ATF\.99, which is no capability of tools/features\.toml"):
        render({"ATF.4": "Gates"}, {}, {"ATF.99": "Nothing has it."})
