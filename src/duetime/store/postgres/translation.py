"""Translates the driver's exceptions to ours: the cause, what was expected, and what to do.

A message never contains internals of the driver; the original exception is its `__cause__`.
"""

from __future__ import annotations

import os
import re

import asyncpg

from duetime.errors import InvalidValue, StoreUnavailable
from duetime.store.postgres.address import OPTIONS, Address

# Refusals after which the same verb may simply be tried again: deadlock, serialization, a lock not had in time.
_LOCKED = "55P03"
_AGAIN = frozenset({"40P01", "40001", _LOCKED})
NO_PARTITION = "23514"
LANE_GONE = "DT004"
EXPECTED = frozenset({"23505", "DT001", "DT002", "DT003", LANE_GONE})

# Refusals of a setting that a connection begins with: unknown, not to be changed now, a wrong value or form, not for this role.
_SETTING = frozenset({"42704", "55P02", "22023", "42601", "42501"})
_FILES = ("sslrootcert", "sslcrl", "sslcert", "sslkey")

# The driver's words for a connection that broke under it; what the server said last may follow.
_BROKEN = re.compile(
    r"cannot switch to|another operation|connection_lost|connection is closed|connection was closed in the middle of operation(: )?"
)
# Losses after which nobody knows whether the statement was done: it may have been, and only the answer is missing.
_LOST = ("08", "57P01", "57P02")


class Refused(StoreUnavailable):
    """A statement was refused for a reason that passes."""

    def __init__(self, message: str, state: str) -> None:
        super().__init__(message)
        self.state = state


class Gone(StoreUnavailable):
    """The connection is gone, or the server is; `in_doubt` if a statement was in progress, which may have been carried out."""

    def __init__(self, message: str, *, in_doubt: bool = False) -> None:
        super().__init__(f"{message}; if a change was asked for, whether it was done is unknown" if in_doubt else message)
        self.in_doubt = in_doubt


class Rejected(Exception):
    """A refusal that the verb itself answers, known by its SQLSTATE."""

    def __init__(self, message: str, state: str) -> None:
        super().__init__(message)
        self.state = state


def translated(error: BaseException, address: Address, *, under_way: bool = False) -> BaseException:
    """Turn what the driver raises into what the seam promises; `under_way` if statements were being run."""
    where = f"the store {address.shown}"
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate:
        return _by_state(error, error.sqlstate, address, under_way)
    if isinstance(error, TimeoutError):
        return Gone(f"{where} did not answer in time", in_doubt=under_way)
    if isinstance(error, OSError | asyncpg.PostgresError | asyncpg.InternalClientError):
        return Gone(_broken(error, where) or f"{where} cannot be reached: {error}", in_doubt=under_way)
    if isinstance(error, asyncpg.DataError | OverflowError | UnicodeEncodeError):
        return InvalidValue(f"a value cannot be stored: {error}")
    if isinstance(error, asyncpg.InterfaceError):
        return Gone(_broken(error, where) or f"the connection to {where} is gone: {error}", in_doubt=under_way)
    return error


def _broken(error: BaseException, where: str) -> str | None:
    """Return the error for a broken connection, if that is what the driver reports."""
    found = _BROKEN.search(str(error))
    if found is None:
        return None
    last_words = str(error)[found.end() :] if found[1] else ""
    return f"the connection to {where} broke" + (f" ({last_words})" if last_words else "")


def _by_state(error: asyncpg.PostgresError, state: str, address: Address, under_way: bool) -> Exception:
    where, message = f"the store {address.shown}", str(error)
    if state in EXPECTED or (state == "54000" and "NOTIFY" in message):  # the server's queue of wake-ups is full
        return Rejected(message, state)
    if state == _LOCKED:
        return Refused(_locked(address), state)
    if state in _AGAIN or (state == NO_PARTITION and "no partition" in message):
        return Refused(f"{where} refused this for now and did nothing of it: {message}; try again", state)
    if state in ("42P01", "3F000", "42883", "42703"):
        return StoreUnavailable(f"{where} has not the tables that this version needs ({message}); run `duetime migrate`")
    if state == "42501":
        return StoreUnavailable(
            f"{where} does not allow this to its user ({message}); docs/postgres.md, Least privilege, lists what to grant"
        )
    if state in ("28P01", "28000", "3D000"):
        return StoreUnavailable(f"{where} cannot be opened: {message}")
    if state.startswith("22"):
        return InvalidValue(f"a value cannot be stored: {message}")
    if state[:2] in ("08", "57", "53", "58", "25"):
        return Gone(_broken(error, where) or f"{where} cannot answer: {message}", in_doubt=under_way and state.startswith(_LOST))
    return StoreUnavailable(f"{where} failed: {message} (SQLSTATE {state})")


def _locked(address: Address) -> str:
    patience = "the lock_timeout of its role" if address.pooled else address.session_settings["lock_timeout"].replace("s", " s")
    return (
        f"the store {address.shown} did nothing of this: another transaction holds a lock on Duetime's tables for longer than {patience}; "
        "find it in pg_stat_activity (the oldest xact_start, or pg_blocking_pids of one that waits), let it end or end it, and try again"
    )


# ---- why a connection was not opened ----


def connection_refusal(error: BaseException, address: Address) -> Exception | None:
    """Return what in the URL or in the PG… variables kept a connection from being opened; None if it was something else."""
    if isinstance(error, asyncpg.PostgresError):
        return _refused_setting(error, address) if error.sqlstate in _SETTING else None
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError | PermissionError):
        return _unreadable_file(address)
    if isinstance(error, ValueError | OverflowError | IndexError):  # from parsing the URL; the driver raises a ValueError for it
        return InvalidValue(
            f"the store {address.shown} cannot be opened: the driver does not take {_source(str(error), address)}: {error}; correct it"
        )
    return None


def _refused_setting(error: asyncpg.PostgresError, address: Address) -> Exception | None:
    # by the names that we have given, because servers speak many languages
    named = [name for name in address.passed_on if name in str(error)] or [name for name in address.passed_on if name == "options"]
    if not named:
        return None
    return InvalidValue(
        f"the option {named[0]} in the URL of the store {address.shown} is none of Duetime's ({', '.join(OPTIONS)}) and none of the "
        f"driver's, and as a setting the server refuses it: {error}; correct it or leave it out"
    )


def _unreadable_file(address: Address) -> Exception | None:
    """Name the file that cannot be read: the exception does not. A moment later it may be there, so this is no InvalidValue."""
    for name in _FILES:
        variable = f"PG{name.upper()}"
        path = address.passed_on.get(name) or os.environ.get(variable)
        try:
            if path:
                open(path, "rb").close()
        except OSError as error:
            source = f"{name} in its URL" if name in address.passed_on else variable
            return Gone(
                f"the store {address.shown} cannot be reached: {source} names the file {path!r}, which cannot be read ({error.strerror}); "
                "correct the name, or let the user of this process read it"
            )
    return None


def _source(message: str, address: Address) -> str:
    """Return where a value comes from that the driver complains of."""
    for name in address.passed_on:
        if name in message:
            return f"{name} in its URL"
    for variable in sorted(name for name, value in os.environ.items() if name.startswith("PG") and value):
        if variable.removeprefix("PG").lower() in message or os.environ[variable] in message:
            return f"the variable {variable}"
    return "its URL or a variable PG…"
