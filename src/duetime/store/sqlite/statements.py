"""The store's statements, read once."""

from __future__ import annotations

from duetime.store.sql import Statements

SQL = Statements("duetime.store.sqlite")

# the position of a lane in which nothing waits; the same number is in the statements
NEVER = 4_611_686_018_427_387_904
