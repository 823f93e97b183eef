"""What a type checker says of the public API: right calls pass, wrong ones fail, line by line."""

import re
from functools import cache
from pathlib import Path

from mypy import api

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@cache
def complaints() -> dict[str, dict[int, str]]:
    """Have mypy read both files strictly, as a user's checker would; return its errors by file and line."""
    files = ("right_calls.py", "wrong_calls.py")
    out, problems, _ = api.run(
        [
            *("--config-file", str(ROOT / "pyproject.toml"), "--strict", "--follow-imports=silent", "--no-error-summary"),
            *("--cache-dir", str(ROOT / ".mypy_cache" / "typing"), *(str(HERE / file) for file in files)),
        ]
    )
    assert not problems
    found = re.findall(r"^\S*?(\w+\.py):(\d+)(?::\d+)?: error: (.*)$", out, re.MULTILINE)
    return {file: {int(line): text for at, line, text in found if at == file} for file in files}


def test_right_calls_are_accepted_with_the_right_types() -> None:
    assert complaints()["right_calls.py"] == {}


def test_wrong_calls_are_refused_line_by_line() -> None:
    lines = (HERE / "wrong_calls.py").read_text().splitlines()
    marked = {number: text.strip() for number, text in enumerate(lines, 1) if text.endswith("# error")}
    refused = complaints()["wrong_calls.py"]
    assert {number: text for number, text in marked.items() if number not in refused} == {}, "accepted, but should not be"
    assert {number: text for number, text in refused.items() if number not in marked} == {}, "refused, but should not be"
