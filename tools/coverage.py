"""Write docs/coverage.md: one row per capability of features.toml, with the tests that prove it, their stores, and notes.

The tests say it themselves, with `@pytest.mark.covers("ATF.4")`; tests/coverage_plugin.py checks what they say. Only a test that has passed
as it stands counts: tools/passed.txt has a line for each, with a digest of its text. Without options what has not passed yet runs now.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FEATURES = ROOT / "tools" / "features.toml"
PASSED = ROOT / "tools" / "passed.txt"
PAGE = ROOT / "docs" / "coverage.md"
RENEW = "run make coverage and commit it."


class Claim(NamedTuple):
    """What a marked test covers, and the digest of its text and marks."""

    features: list[str]
    digest: str


class Pass(NamedTuple):
    """With which digest a test passed last, and on which stores."""

    digest: str
    stores: str


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


def read_passed(text: str) -> dict[str, Pass]:
    """Read the record: on each line a test, the digest, and the stores with commas between them, or a hyphen."""
    found = {}
    for line in text.splitlines():
        test, digest, stores = line.split(" ")
        found[test] = Pass(digest, "" if stores == "-" else stores)
    return found


def write_passed(passed: Mapping[str, Pass]) -> str:
    return "".join(f"{test} {each.digest} {each.stores or '-'}\n" for test, each in sorted(passed.items()))


def outdated(claims: Mapping[str, Claim], passed: Mapping[str, Pass]) -> list[str]:
    """Return the marked tests that have not passed as they stand."""
    return sorted(test for test, claim in claims.items() if test not in passed or passed[test].digest != claim.digest)


def proofs(claims: Mapping[str, Claim], passed: Mapping[str, Pass]) -> dict[str, list[str]]:
    """Return what the page shows of the tests that have passed as they stand, by capability."""
    shown: dict[str, list[str]] = {}
    for test in sorted(claims.keys() - set(outdated(claims, passed))):
        stores = passed[test].stores.replace(",", ", ")
        for feature in claims[test].features:
            shown.setdefault(feature, []).append(f"`{test}`{f' ({stores})' if stores else ''}")
    return shown


def render(features: Mapping[str, str], shown: Mapping[str, Collection[str]], notes: Mapping[str, str]) -> str:
    """Return the page for `features`: `shown` are the proofs of those that have any, and `notes` says what else is to be known."""
    unknown = notes.keys() - features.keys()
    if unknown:
        raise ValueError(f"there is a note on {min(unknown)}, which is no capability of {FEATURES.relative_to(ROOT)}")
    rows = []
    for feature, capability in features.items():
        if feature in notes:
            capability += f"<br>*{notes[feature]}*"
        rows.append(f"| {feature} | {capability} | {'<br>'.join(shown.get(feature, ())) or 'not yet'} |")
    return "\n".join(
        [
            "# Coverage",
            "",
            "What Duetime sets out to cover, and the tests that prove it, each with the stores on which it passed. Written by",
            "`make coverage`, which runs what has changed; not edited by hand.",
            "",
            "| ID | Capability | Tests |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    )


def marked_files() -> list[str]:
    """Return the files that have marked tests, or import from one that has: to collect all tests would take many times as long."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    marked = {path for path, text in texts.items() if "mark.covers(" in text}
    imports = re.compile(rf"^from .*\b({'|'.join(path.stem for path in marked)})\b", re.MULTILINE)
    return [str(path.relative_to(ROOT)) for path, text in texts.items() if path in marked or imports.search(text)]


def collect() -> dict[str, Claim]:
    """Return what each marked test covers, by letting pytest collect the tests without running them."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "map.json"
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--coverage-map", str(found), *marked_files()]
        run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if run.returncode != 0 or not found.exists():
            sys.exit(f"{run.stdout}\nThe tests could not be collected; repair them, then run make coverage again.")
        return {test: Claim(*claim) for test, claim in json.loads(found.read_text(encoding="utf-8")).items()}


def run(tests: Iterable[str]) -> dict[str, str]:
    """Run tests; return the stores of those that passed with all their parameters."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "passed.jsonl"
        record.touch()
        command = [sys.executable, "-m", "pytest", "-q", "--coverage-record", str(record), *tests]
        try:
            subprocess.run(command, cwd=ROOT, check=False)
        except KeyboardInterrupt:
            print("Broken off; what has passed is kept.")
        return passes(map(json.loads, record.read_text(encoding="utf-8").splitlines()))


def passes(outcomes: Iterable[tuple[str, bool, list[str]]]) -> dict[str, str]:
    """Return the stores of the tests that never failed: of each outcome the test, whether it passed, and the stores that it used."""
    stores: dict[str, set[str]] = {}
    failed = set()
    for test, passed, used in outcomes:
        stores.setdefault(test, set()).update(used)
        if not passed:
            failed.add(test)
    return {test: ",".join(sorted(used, reverse=True)) for test, used in stores.items() if test not in failed}


def check(claims: Mapping[str, Claim], passed: Mapping[str, Pass]) -> None:
    """Fail unless the page shows exactly what has passed as it stands."""
    page = render(load_features(), proofs(claims, passed), load_notes())
    gone = sorted(passed.keys() - claims.keys())
    if gone or PASSED.read_text(encoding="utf-8") != write_passed(passed) or PAGE.read_text(encoding="utf-8") != page:
        sys.exit(f"{PAGE.relative_to(ROOT)} or {PASSED.relative_to(ROOT)} is out of date; {RENEW}")
    old = outdated(claims, passed)
    print(
        f"{PAGE.relative_to(ROOT)} is up to date"
        + (f"; {len(old)} marked tests have not passed as they stand and do not count." if old else ".")
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.coverage", description="Run marked tests that have changed; write docs/coverage.md."
    )
    parser.add_argument("--check", action="store_true", help="run and write nothing; fail if something is out of date")
    parser.add_argument("--no-run", action="store_true", help="run nothing; write the page with what has passed as it stands")
    parser.add_argument("--all", action="store_true", help="run all marked tests, also those that have passed as they stand")
    options = parser.parse_args()
    claims = collect()
    passed = read_passed(PASSED.read_text(encoding="utf-8")) if PASSED.exists() else {}
    if options.check:
        check(claims, passed)
        return
    wanted = sorted(claims) if options.all else outdated(claims, passed)
    if wanted and not options.no_run:
        now = run(wanted)
        passed = {test: each for test, each in passed.items() if test not in wanted}
        passed |= {test: Pass(claims[test].digest, stores) for test, stores in now.items() if test in claims}
    passed = {test: each for test, each in passed.items() if test in claims}
    PASSED.write_text(write_passed(passed), encoding="utf-8")
    shown = proofs(claims, passed)
    PAGE.write_text(render(load_features(), shown, load_notes()), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(shown)} of {len(load_features())} capabilities have a test that passed.")
    if old := outdated(claims, passed):
        print("These have not passed as they stand, and do not count:\n" + "\n".join(old))


if __name__ == "__main__":
    main()
