"""Tokens and the audit from the command line."""

import re

import pytest

from tests.cli.conftest import CommandLine, Shop

TOKEN = re.compile(r"dt_[0-9a-f]{16}_[0-9a-f]{64}")


@pytest.fixture(autouse=True)
def tables(duetime: CommandLine) -> None:
    duetime("migrate")


def test_a_token_is_printed_once_and_listed_without_its_secret(duetime: CommandLine) -> None:
    assert "there is no token" in duetime("tokens").stderr
    made = duetime(
        "tokens", "create", "shop", "--scope", "submit", "--scope", "work", "--handler", "shop.*", "--expires", "90d", "--rate", "50"
    )
    assert TOKEN.fullmatch(made.stdout.strip()), "nothing else is on stdout"
    assert "cannot be shown again" in made.stderr
    listed = duetime.lines("tokens")
    assert listed == duetime.lines("tokens", "list")
    assert re.match(r"shop +submit, work +shop\.\* +2\S+ \S+ UTC +– +50/s ", listed[1])
    secret = made.stdout.strip().split("_")[2]
    assert secret not in "".join(listed) + duetime("tokens", "--json").stdout + duetime("audit", "--json").stdout
    [token] = duetime.json("tokens")["items"]
    assert (token["name"], token["scopes"], token["handlers"], token["last_used_at"]) == ("shop", ["submit", "work"], ["shop.*"], None)


def test_a_token_is_rotated_and_revoked_by_name_by_id_or_by_itself(duetime: CommandLine) -> None:
    first = duetime.json("tokens", "create", "shop", "--scope", "read", "--note", "the web shop")
    assert TOKEN.fullmatch(first["token"])
    second = duetime("tokens", "rotate", first["id"], "--grace", "1h")
    assert "The old secret is valid until" in second.stderr
    assert second.stdout.strip() != first["token"]
    third = duetime("tokens", "rotate", "shop", "--grace", "0", "--expires", "2100-01-01T00:00:00Z")
    assert "old secret" not in third.stderr
    assert duetime.json("tokens")["items"][0]["expires_at"] == "2100-01-01T00:00:00Z"
    assert duetime.lines("tokens", "revoke", third.stdout.strip()) == ["revoked shop"]
    assert duetime.json("tokens")["items"] == []
    duetime("tokens", "create", "shop", "--scope", "read")
    assert duetime.json("tokens", "revoke", "shop")["name"] == "shop"


def test_mistakes_end_with_the_code_for_them(duetime: CommandLine) -> None:
    duetime("tokens", "create", "shop", "--scope", "read")
    assert "there is a token 'shop' already" in duetime("tokens", "create", "shop", "--scope", "read", code=4).stderr
    assert "there is no token 'mail'" in duetime("tokens", "revoke", "mail", code=3).stderr
    duetime("tokens", "rotate", "mail", code=3)
    duetime("tokens", "create", "mail", code=2)
    duetime("tokens", "create", "mail", "--scope", "root", code=2)
    duetime("tokens", "create", "mail", "--scope", "admin", "--handler", "work", code=2)
    duetime("tokens", "create", "mail", "--scope", "read", "--expires", "soon", code=2)
    duetime("tokens", "create", "mail", "--scope", "read", "--rate", "0", code=2)


def test_no_store_is_made_by_asking_for_tokens(duetime: CommandLine, tmp_path: object) -> None:
    elsewhere = f"sqlite:///{tmp_path}/mistyped.db"
    for command in (["tokens"], ["tokens", "create", "shop", "--scope", "read"], ["audit"]):
        assert "there is no store at" in duetime(*command, code=5, url=elsewhere).stderr


def test_the_audit_tells_who_did_what_and_how_it_ended(duetime: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such entry" in duetime("audit").stderr
    monkeypatch.setenv("DUETIME_USER", "anna@shop")
    duetime("tokens", "create", "shop", "--scope", "read")
    monkeypatch.setenv("DUETIME_USER", "bert@shop")
    duetime("tokens", "create", "shop", "--scope", "read", code=4)
    duetime("tokens", "revoke", "shop")
    entries = duetime.json("audit")["items"]
    assert [(entry["by"], entry["action"], entry["subject"], entry["outcome"]) for entry in entries] == [
        ("bert@shop", "tokens.revoke", "shop", "done"),
        ("bert@shop", "tokens.create", "shop", "refused"),
        ("anna@shop", "tokens.create", "shop", "done"),
    ]
    assert len(duetime.lines("audit", "--by", "bert@shop", "--action", "tokens.create", "--subject", "shop", "--since", "1h")) == 2
    assert duetime.json("audit", "--until", "1h")["items"] == []
    assert len(duetime.json("audit", "--limit", "2")["items"]) == 2
    duetime("audit", "--limit", "0", code=2)


def audited(duetime: CommandLine) -> list[tuple[str, str, str, str]]:
    """Return the entries of the audit, the oldest first."""
    entries = duetime.json("audit")["items"]
    return [(entry["action"], entry["subject"], entry["outcome"], entry["detail"]) for entry in reversed(entries)]


def test_gates_are_in_the_audit(duetime: CommandLine, shop: Shop) -> None:
    duetime("gates", "pause", "greet", "--collection", "eu", "--note", "stock service down")
    duetime("gates", "drop", "greet")
    duetime("gates", "open", "greet")
    duetime("gates", "open", "greet", code=3)
    duetime("gates", "pause", "nobody", code=3)
    duetime("gates")
    [*known, unknown] = audited(duetime)
    assert known == [
        ("gates.pause", "greet, collection eu", "done", "stock service down; in force"),
        ("gates.drop", "greet", "done", "in force"),
        ("gates.open", "greet", "done", ""),
        ("gates.open", "greet", "refused", ""),
    ]
    assert unknown[:3] == ("gates.pause", "nobody", "refused")


def test_changes_of_tasks_are_in_the_audit_and_counting_them_is_not(duetime: CommandLine, shop: Shop) -> None:
    ids = [duetime.submit("greet", "name=x", "--in", "1h", "--key", str(n)) for n in range(4)]
    duetime("reschedule", ids[0], "--in", "2h")
    duetime("cancel", ids[0], ids[1])
    duetime("cancel", "--handler", "greet", "--key", "2")
    duetime("cancel", "--handler", "greet", "--dry-run")
    duetime("cancel", "--handler", "greet", "--state", "pending", "--yes")
    duetime("cancel", ids[0], code=4)
    duetime("retry", ids[0])
    edited, by_id, by_key, by_filter, *rest = audited(duetime)
    assert edited[:3] == ("tasks.edit", ids[0], "done")
    assert by_id == ("tasks.cancel", f"{ids[0]}, {ids[1]}", "done", "2 cancelled")
    assert by_key == ("tasks.cancel", "greet, key 2", "done", "1 cancelled")
    assert by_filter[:3] == ("tasks.cancel", "handler greet, state pending", "done")
    assert by_filter[3].startswith("operation ")
    assert by_filter[3].endswith(" done; 1 cancelled")
    assert rest == [("tasks.cancel", ids[0], "refused", "1 finished"), ("tasks.retry", ids[0], "done", "1 pending")]


def test_repairs_are_in_the_audit_and_looking_is_not(duetime: CommandLine, shop: Shop) -> None:
    duetime("doctor")
    duetime("doctor", "--repair")
    assert audited(duetime) == [("doctor.repair", "store", "done", "no problems")]
