import json
from pathlib import Path

import pytest

from tools.coverage import load_features, load_notes, render


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


def test_the_map_names_each_test_once_whatever_its_parameters(suite: pytest.Pytester, tmp_path: Path) -> None:
    target = tmp_path / "map.json"
    source = """
@pytest.mark.covers('ATF.4', 'REQ.14')
@pytest.mark.parametrize('store', ['sqlite', 'postgres'])
def test_gates(store): pass

@pytest.mark.covers('ATF.4')
def test_drop(): pass

def test_without_claims(): pass
"""
    assert collect(suite, source, "--coverage-map", str(target)).ret == pytest.ExitCode.OK
    assert json.loads(target.read_text()) == {
        "ATF.4": ["test_claims.py::test_drop", "test_claims.py::test_gates"],
        "REQ.14": ["test_claims.py::test_gates"],
    }


def test_the_page_has_one_row_per_capability() -> None:
    features = load_features()
    page = render(features, {"ATF.4": ["tests/b.py::test_two", "tests/a.py::test_one"]}, load_notes())
    rows = [line.strip("|").split(" | ") for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| ID", "| ---"))]
    assert len(rows) == 191
    assert [row[0].strip() for row in rows] == list(features)
    assert {len(row) for row in rows} == {3}
    assert "**1 of 191** capabilities have a test." in page
    assert "`tests/a.py::test_one`<br>`tests/b.py::test_two` |" in page
    assert page.count("| not yet |") == 190


def test_a_note_stands_with_its_capability() -> None:
    page = render({"ATF.4": "Gates"}, {}, {"ATF.4": "Without levers."})
    assert "| ATF.4 | Gates<br>*Without levers.* | not yet |" in page
    with pytest.raises(ValueError, match=r"a note on ATF\.99, which is no capability of tools/features\.toml"):
        render({"ATF.4": "Gates"}, {}, {"ATF.99": "Nothing has it."})
