"""Write docs/coverage.md: one row per capability of features.toml, with the tests that prove it and the note that it has there.

The tests say it themselves, with `@pytest.mark.covers("ATF.4")`; tests/coverage_plugin.py checks what they say and hands over the map.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FEATURES = ROOT / "tools" / "features.toml"
PAGE = ROOT / "docs" / "coverage.md"


def load_features() -> dict[str, str]:
    """Return the capability of each ID, in the order of the file."""
    features: dict[str, str] = _load()
    del features["notes"]
    return features


def load_notes() -> dict[str, str]:
    """Return the notes of those IDs that have one."""
    notes: dict[str, str] = _load()["notes"]
    return notes


def _load() -> dict[str, Any]:
    return tomllib.loads(FEATURES.read_text(encoding="utf-8"))


def render(features: Mapping[str, str], tests_of: Mapping[str, Collection[str]], notes: Mapping[str, str]) -> str:
    """Return the page for `features`: of those that have any, `tests_of` names the tests, and `notes` says what else is to be known."""
    unknown = notes.keys() - features.keys()
    if unknown:
        raise ValueError(f"there is a note on {min(unknown)}, which is no capability of {FEATURES.relative_to(ROOT)}")
    rows = []
    for feature, capability in features.items():
        tests = sorted(tests_of.get(feature, ()))
        if feature in notes:
            capability += f"<br>*{notes[feature]}*"
        rows.append(f"| {feature} | {capability} | {'<br>'.join(f'`{test}`' for test in tests) or 'not yet'} |")
    covered = sum(1 for feature in features if tests_of.get(feature))
    return "\n".join(
        [
            "# Coverage",
            "",
            "What Duetime sets out to cover, and the tests that prove it. Written from the tests by `make coverage`; not edited by hand.",
            "",
            f"**{covered} of {len(features)}** capabilities have a test.",
            "",
            "| ID | Capability | Tests |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    )


def collect() -> dict[str, list[str]]:
    """Return the tests of each covered capability, by letting pytest collect all tests without running them."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "map.json"
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--coverage-map", str(found)]
        run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if run.returncode != 0 or not found.exists():
            sys.exit(f"{run.stdout}\nThe tests could not be collected; repair them, then run make coverage again.")
        tests_of: dict[str, list[str]] = json.loads(found.read_text(encoding="utf-8"))
        return tests_of


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.coverage", description="Write docs/coverage.md from the tests.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    check = parser.parse_args().check
    page = render(load_features(), collect(), load_notes())
    shown = PAGE.relative_to(ROOT)
    if check:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
            sys.exit(f"{shown} is out of date; run make coverage and commit it.")
        print(f"{shown} is up to date.")
    else:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page, encoding="utf-8")
        print(f"{shown}: {next(line for line in page.splitlines() if line.startswith('**')).replace('**', '')}")


if __name__ == "__main__":
    main()
