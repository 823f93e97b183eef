"""What `duetime doctor` can find in a store is listed in the manual, on the page for those who read it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STORES = ("src/duetime/store/sqlite/upkeep.py", "src/duetime/store/postgres/inspection.py")


def test_the_manual_lists_all_findings_and_no_others() -> None:
    sources = [(ROOT / name).read_text(encoding="utf-8") for name in STORES]
    kinds = {kind for text in sources for kind in re.findall(r'Inconsistency\(\s*"([^"]+)"', text)}
    assert sum(text.count(" Inconsistency(") for text in sources) == sum(len(re.findall(r'Inconsistency\(\s*"', text)) for text in sources)
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    [table] = re.findall(r"^\| finding \|.*?\n\n", page, re.MULTILINE | re.DOTALL)
    rows = table.splitlines()[2:]
    assert {kind for row in rows if row for kind in re.findall("`([^`]+)`", row.split("|")[1])} == kinds
