"""The server's settings in our sessions: what we set, and what we refuse to work with.

Server, database and role may have any legal value for any of them. A connection of our own begins with SESSION. Behind a pooler nothing
of a session lasts, and some proxies drop what a connection begins with, so what a session has in the end is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from duetime.errors import StoreUnavailable

# Settings that change what statements mean or do, with the only value that we work with. default_transaction_read_only is not among
# them: who sets it wants that nothing is written, and our writes are refused with that reason.
NEEDED: Mapping[str, str] = {
    "default_transaction_isolation": "read committed",  # each statement sees what was committed before it began
    "standard_conforming_strings": "on",
    "array_nulls": "on",  # or null in an array of ours is the text NULL
    "gin_fuzzy_search_limit": "0",  # or a search finds some of what there is
    "exit_on_error": "off",  # or a statement that is refused, and would be repeated, ends the session
}

SESSION: Mapping[str, str] = {
    **NEEDED,
    "application_name": "duetime",
    "search_path": "pg_catalog",  # our statements name the schema of what is ours; nobody's function comes before the server's
    "row_security": "off",  # a policy on our tables is an error then, and does not hide tasks
    # a process that dies or is cut off inside a transaction must not keep its locks
    "idle_in_transaction_session_timeout": "10s",
    "lock_timeout": "10s",
    "statement_timeout": "0",  # each statement has its own time, which our side keeps
    "idle_session_timeout": "0",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "jit": "off",
    "plan_cache_mode": "auto",
    "max_parallel_workers_per_gather": "0",  # a page that finds little took 50 ms with parallel plans and 6 ms without
}

# Settings that older servers do not know, so no connection can begin with them.
_NEWER: Mapping[str, str] = {"transaction_timeout": "0", "restrict_nonsystem_relation_kind": ""}

# Temporary tables come before the server's own, but have no functions.
_FIRST_SCHEMA = "(select s.name from pg_catalog.unnest(pg_catalog.current_schemas(true)) as s (name) where s.name !~~ 'pg_temp%' limit 1)"
_FACTS = ", ".join([*(f"pg_catalog.current_setting('{name}')" for name in NEEDED), _FIRST_SCHEMA])
_SETTING = ", ".join(
    f"case when pg_catalog.current_setting('{name}', true) <> '{value}' then pg_catalog.set_config('{name}', '{value}', false) end"
    for name, value in _NEWER.items()
)


def facts(*, pooled: bool) -> str:
    """Return the columns that `check` reads; a session of our own has its last settings when they are read."""
    return _FACTS if pooled else f"{_FACTS}, {_SETTING}"


def check(facts: Sequence[object], where: str, *, pooled: bool) -> None:
    """Raise StoreUnavailable if a session has settings with which our statements would do something else than they say."""
    *values, schemas = facts[: len(NEEDED) + 1]
    wrong = {name: value for (name, needed), value in zip(NEEDED.items(), values, strict=True) if value != needed}
    if schemas != "pg_catalog":
        wrong["search_path"] = schemas
    for name, value in wrong.items():
        reason = "pooled=on leaves settings to the role" if pooled else "something between here and the server drops our settings"
        raise StoreUnavailable(
            f"the store {where} cannot be used with {name} = {value}, and {reason}: alter role … set {name} = '{SESSION[name]}', "
            "then let the pooler connect again (docs/postgres.md, Settings)"
        )
