"""The doors compared: what is stored can be put, got, listed and deleted in Python, over HTTP and by command, or it says why not."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from duetime import App, Handlers
from duetime.api.app import ROUTES
from duetime.cli.main import cli
from duetime.model.access import Scope

TOKENS = Path(__file__).resolve().parents[2] / "docs" / "tokens.md"
VERBS = ("put", "get", "list", "delete")

# Each noun's verbs: the method of App or of its service, the name of the route, the command. A text that begins with `:` is the reason for
# which there is none.
NOUNS: dict[str, dict[str, tuple[str, str, str]]] = {
    "task": {
        "put": ("submit", "submit_task", "submit"),
        "get": ("get", "get_task", "task"),
        "list": ("tasks", "list_tasks", "tasks"),
        "delete": ("delete", "delete_task", "delete"),
    },
    "schedule": {
        "put": ("schedules.put", "put_schedule", "schedules put"),
        "get": ("schedules.get", "get_schedule", "schedules show"),
        "list": ("schedules.list", "list_schedules", "schedules list"),
        "delete": ("schedules.delete", "delete_schedule", "schedules delete"),
    },
    "calendar": {
        "put": ("calendars.put", "put_calendar", "calendars put"),
        "get": ("calendars.get", "get_calendar", "calendars show"),
        "list": ("calendars.list", "list_calendars", "calendars list"),
        "delete": ("calendars.delete", "delete_calendar", "calendars delete"),
    },
    "gate": {
        "put": ("gates.put", "put_gate", "gates pause"),
        "get": (": a handler has few gates, and the list is read whole", "get_gate", ": the list shows all there is to a gate"),
        "list": ("gates.list", "list_gates", "gates"),
        "delete": ("gates.open", "open_gate", "gates open"),
    },
    "handler": {
        "put": ("targets.put", "put_target", "handlers put"),
        "get": ("handler_info", "get_handler", "handlers show"),
        "list": ("handlers", "list_handlers", "handlers list"),
        "delete": ("targets.delete", "delete_target", "handlers delete"),
    },
    "worker": {
        "put": ("worker", "register_worker", "worker"),
        "get": ("get_worker", "get_worker", "workers show"),
        "list": ("workers", "list_workers", "workers list"),
        "delete": (": a worker of a program leaves when its block ends", "dismiss_worker", ": a signal ends a worker"),
    },
    "server": {
        "put": (": a server makes itself known when it starts", ": a server makes itself known when it starts", "server"),
        "get": (": the list has all there is to a server", ": the list has all there is to a server", ": the list has all there is to it"),
        "list": ("servers", "list_servers", "servers"),
        "delete": (": a server is forgotten when it stops", ": a server is forgotten when it stops", ": a signal ends a server"),
    },
    "secret": {
        "put": ("secrets.put", "put_secret", "secrets put"),
        "get": (": a value never comes out again", ": a value never comes out again", ": a value never comes out again"),
        "list": ("secrets.list", "list_secrets", "secrets list"),
        "delete": ("secrets.delete", "delete_secret", "secrets delete"),
    },
    "artifact": {
        "put": ("artifacts.put", "begin_upload", "artifacts put"),
        "get": ("artifacts.get", "get_artifact", "artifacts show"),
        "list": ("artifacts.list", "list_artifacts", "artifacts list"),
        "delete": ("artifacts.delete", "delete_artifact", "artifacts delete"),
    },
    "token": {
        "put": ("tokens.create", "create_token", "tokens create"),
        "get": (
            ": the list has all there is to a token",
            ": the list has all there is to a token",
            ": the list has all there is to a token",
        ),
        "list": ("tokens.list", "list_tokens", "tokens list"),
        "delete": ("tokens.revoke", "revoke_token", "tokens revoke"),
    },
    "lock": {
        "put": ("locks.take", "take_lock", ": a lock is held by a program, which must live as long"),
        "get": ("locks.get", "get_lock", "locks show"),
        "list": ("locks.list", "list_locks", "locks list"),
        "delete": ("locks.delete", "delete_lock", "locks delete"),
    },
    "operation": {
        "put": ("operations.start", "start_operation", "retry"),
        "get": ("operations.get", "get_operation", "operations show"),
        "list": ("operations.list", "list_operations", "operations list"),
        "delete": ("operations.stop", "stop_operation", "operations stop"),
    },
    "flow": {
        "put": ("flows.submit", "submit_flow", ": a graph is built by a program, or sent as JSON"),
        "get": ("flows.get", "get_flow", "flows show"),
        "list": ("flows.list", "list_flows", "flows list"),
        "delete": ("flows.cancel", "cancel_flow", "flows cancel"),
    },
    "failure": {
        "put": (": failures come from tasks", ": failures come from tasks", ": failures come from tasks"),
        "get": ("failures.get", "get_failure", "failures show"),
        "list": ("failures.list", "list_failures", "failures list"),
        "delete": ("failures.mute", "mute_failure", "failures mute"),
    },
    "limit": {
        "put": ("limits.put", "put_limit", "limits put"),
        "get": ("limits.get", "get_limit", "limits show"),
        "list": ("limits.list", "list_limits", "limits list"),
        "delete": ("limits.reset", "reset_limit", "limits reset"),
    },
    "weights": {
        "put": ("weights.put", "put_weights", "weights put"),
        "get": ("weights.get", "get_weights", "weights show"),
        "list": ("weights.list", "list_weights", "weights list"),
        "delete": ("weights.delete", "delete_weights", "weights delete"),
    },
    "signal": {
        "put": ("signals.send", "send_signal", "signals send"),
        "get": (": the list by name has them", ": the list by name has them", ": the list by name has them"),
        "list": ("signals.list", "list_signals", "signals list"),
        "delete": ("signals.delete", "delete_signals", "signals delete"),
    },
    "event": {
        "put": (": events come from tasks", ": events come from tasks", ": events come from tasks"),
        "get": (": the stream has them whole", ": the stream has them whole", ": the stream has them whole"),
        "list": ("events", "list_events", "events"),
        "delete": (": they go when nobody follows", ": they go when nobody follows", ": they go when nobody follows"),
    },
    "rule of alerts": {
        "put": ("alerts.put", "put_alert_rule", "alerts put"),
        "get": ("alerts.get", "get_alert_rule", "alerts show"),
        "list": ("alerts.list", "list_alert_rules", "alerts list"),
        "delete": ("alerts.delete", "delete_alert_rule", "alerts delete"),
    },
    "alert": {
        "put": (": alerts come from rules", ": alerts come from rules", ": alerts come from rules"),
        "get": (": the list has all there is to an alert", ": the list has all there is to an alert", ": the list has all there is to it"),
        "list": ("alerts.firing", "list_alerts", "alerts firing"),
        "delete": ("alerts.acknowledge", "acknowledge_alert", "alerts acknowledge"),
    },
    "channel": {
        "put": ("channels.put", "put_channel", "channels put"),
        "get": ("channels.get", "get_channel", "channels show"),
        "list": ("channels.list", "list_channels", "channels list"),
        "delete": ("channels.delete", "delete_channel", "channels delete"),
    },
    "shard": {
        "put": ("shards.add", ": the address of a shard has a password, and a server is not to hand it on", "shards add"),
        "get": (": there are few, and the list has all", ": as for put", ": there are few, and the list has all"),
        "list": ("shards.list", ": as for put", "shards list"),
        "delete": ("shards.delete", ": as for put", "shards delete"),
    },
    "act in the audit": {
        "put": (": acts are noted by themselves", ": acts are noted by themselves", ": acts are noted by themselves"),
        "get": (": the list has them whole", ": the list has them whole", ": the list has them whole"),
        "list": ("tokens.audit.list", "list_audit", "audit"),
        "delete": (": nobody may", ": nobody may", ": nobody may"),
    },
}
DOORS = ("Python", "HTTP", "command line")
_ROUTES = {route.name for route in ROUTES}

# What has addresses or commands of its own and is no noun that is stored: looks at all of it, and what serves other nouns.
NO_NOUN = {
    "doctor", "flow-counts", "forecast", "health", "logs", "rules", "secret-keys", "series", "stats", "uploads",
    "backup", "bench", "cancel", "copy", "demo", "dev", "edit", "migrate", "reschedule", "status", "top", "why",
}  # fmt: skip


def exists(door: str, name: str) -> bool:
    if door == "HTTP":
        return name in _ROUTES
    if door == "Python":
        found: object = App("sqlite:///:memory:")
        for part in name.split("."):
            found = getattr(found, part, None)
        return callable(found)
    command: click.Command | None = cli
    for part in name.split():
        command = command.get_command(click.Context(command), part) if isinstance(command, click.Group) else None
    return command is not None


@pytest.mark.parametrize("noun", NOUNS)
def test_a_noun_has_the_same_verbs_at_all_doors_or_a_reason(noun: str) -> None:
    assert tuple(NOUNS[noun]) == VERBS
    missing = [
        f"{verb} {noun}, {door}: {name}"
        for verb, names in NOUNS[noun].items()
        for door, name in zip(DOORS, names, strict=True)
        if not name.startswith(": ") and not exists(door, name)
    ]
    assert not missing


def names_at(door: str) -> list[str]:
    """Return what the table has at a door."""
    return [each for verbs in NOUNS.values() for names in verbs.values() if not (each := names[DOORS.index(door)]).startswith(": ")]


def test_no_noun_is_missing_in_the_table() -> None:
    app = App("sqlite:///:memory:")
    services = {
        name for name in dir(app) if not name.startswith("_") and name != "store" and callable(getattr(getattr(app, name), "list", None))
    }
    assert services - {name.partition(".")[0] for name in names_at("Python")} == set()
    addresses = {route.name: route.path.split("/")[2] for route in ROUTES if route.path.startswith("/v1/")}
    others = set(addresses.values()) - {addresses[name] for name in names_at("HTTP")}
    others |= set(cli.commands) - {name.partition(" ")[0] for name in names_at("command line")}
    assert others == NO_NOUN


def test_every_declaration_exists_on_apps_and_on_groups_of_handlers() -> None:
    for name in ("task", "http", "command", "publish", "flow", "schedule", "on", "alert"):
        assert callable(getattr(App, name))
        assert getattr(Handlers, name) == getattr(App, name)


def test_the_table_of_scopes_by_noun_is_right() -> None:
    section = TOKENS.read_text(encoding="utf-8").partition("## By noun")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| /v1/")]
    assert {row[0].split("/")[2] for row in rows} == {route.path.split("/")[2] for route in ROUTES if route.path.startswith("/v1/")}
    for address, looking, changing in rows:
        routes = [route for route in ROUTES if route.path == address or route.path.startswith(f"{address}/")]
        assert routes, address
        for scope, some in ((looking, [r for r in routes if r.method == "GET"]), (changing, [r for r in routes if r.method != "GET"])):
            assert {str(route.scope) for route in some if route.scope is not None} == set(
                re.findall(r"[a-z]+", scope.partition("(")[0])
            ) & set(Scope), address
