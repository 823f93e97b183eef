"""The seam as types: `Store` is the sum of its roles, the page about it counts them right, and no two roles share a member."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Protocol

from duetime.store import Store
from duetime.store.control import Control
from duetime.store.shard import Shard

PAGE = Path(__file__).resolve().parents[2] / "docs" / "design" / "seam.md"


def members(role: type) -> list[str]:
    return [name for name, value in vars(role).items() if not name.startswith("_") and (callable(value) or isinstance(value, property))]


def roles(half: type) -> list[type]:
    return [base for base in half.__bases__ if base is not Protocol]


def test_no_member_belongs_to_two_roles() -> None:
    names = Counter(name for role in [*roles(Shard), *roles(Control), Store] for name in members(role))
    assert [name for name, count in names.items() if count > 1] == []
    assert members(Shard) == members(Control) == [], "a half is nothing but the sum of its roles"


def test_the_page_counts_the_members_of_each_role() -> None:
    text = PAGE.read_text(encoding="utf-8")
    counted = {name: int(count) for name, count in re.findall(r"^\| \w* ?\| `(\w+)`: [^|]+ \| (\d+) \|", text, re.MULTILINE)}
    assert counted == {role.__name__: len(members(role)) for role in [*roles(Shard), *roles(Control)]}
    shard, control = (sum(len(members(role)) for role in roles(half)) for half in (Shard, Control))
    own = len(members(Store))
    assert f"That is {shard} of a shard, {control} of control and {own} of both: {shard + control + own}." in text
