"""Secrets from the command line: a value comes from standard input, a file, the environment or a prompt, never as an argument."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from duetime import App
from duetime.model.secrets import MAX_SECRET, read_keys, write_key
from duetime.secrets.keys import new_key
from tests.cli.conftest import CommandLine
from tests.integration.test_secrets import PLANTED, refuse_planted

OLD, NEW = (write_key(new_key(id)) for id in ("2026a", "2026b"))


@pytest.fixture(autouse=True)
def keys(duetime: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_SECRET_KEYS", NEW)
    duetime("migrate")


def values(url: str, name: str) -> tuple[str, ...]:
    app = App(url)

    async def read() -> tuple[str, ...]:
        async with app:
            return (await app.secret_reader(app.store).reveal(name)).values

    return app.sync(read())


def test_a_secret_is_put_listed_and_deleted(duetime: CommandLine, url: str) -> None:
    assert "there is no secret; `duetime secrets put` stores one" in duetime("secrets").stderr
    put = duetime("secrets", "put", "billing", input=f"{PLANTED}\n")
    assert put.stdout == "put billing: version 1, sealed with the key 2026b\n"
    again = duetime("secrets", "put", "billing", "--grace", "1h", input="another value")
    assert "version 2, sealed with the key 2026b; former values are good until 2" in again.stdout
    assert values(url, "billing") == ("another value", PLANTED), "without the newline at the end"
    listed = duetime.lines("secrets")
    assert listed == duetime.lines("secrets", "list")
    assert listed[1].split()[:4] == ["billing", "2", "2026b", "yes"]
    [item] = duetime.json("secrets")["items"]
    assert (item["name"], item["version"], item["versions"]) == ("billing", 2, 2)
    assert duetime.lines("secrets", "delete", "billing") == ["deleted billing"]
    assert "there is no secret 'billing'" in duetime("secrets", "delete", "billing", code=3).stderr
    acts = [(each["action"], each["subject"], each["outcome"]) for each in duetime.json("audit")["items"]]
    assert acts == [
        ("secrets.delete", "billing", "refused"),
        ("secrets.delete", "billing", "done"),
        ("secrets.put", "billing", "done"),
        ("secrets.put", "billing", "done"),
    ]
    refuse_planted(f"{put} {again} {listed} {item} {duetime('audit', '--json').stdout}", "what was printed")


def test_a_value_comes_from_a_file_or_the_environment(
    duetime: CommandLine, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = tmp_path / "client.pem"
    pem.write_text("-----BEGIN-----\nabc\n-----END-----\n\n")
    assert duetime.json("secrets", "put", "pem", "--file", str(pem))["version"] == 1
    monkeypatch.setenv("BILLING", PLANTED)
    duetime("secrets", "put", "billing", "--from-env", "BILLING")
    assert values(url, "pem") == ("-----BEGIN-----\nabc\n-----END-----\n",)
    assert values(url, "billing") == (PLANTED,)


@pytest.mark.slow
def test_a_terminal_is_asked_twice_and_shows_nothing(url: str) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "duetime.cli", "secrets", "put", "billing", "--url", url]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        shown = b""
        for question in (b"Value of billing: ", b"Repeat for confirmation: "):
            while question not in shown:
                shown += os.read(ours, 1_000)
            os.write(ours, b"hunter2-hunter2\n")
        try:
            while more := os.read(ours, 1_000):
                shown += more
        except OSError:  # the terminal has ended with the command
            pass
    os.close(ours)
    assert (process.returncode, b"hunter2" in shown) == (0, False), shown
    assert values(url, "billing") == ("hunter2-hunter2",)


def test_mistakes_end_with_the_code_for_them(duetime: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "1 to 65,536 bytes" in duetime("secrets", "put", "billing", input="", code=2).stderr
    assert "got 65,537" in duetime("secrets", "put", "billing", input="x" * (MAX_SECRET + 1), code=2).stderr
    assert "text in UTF-8" in duetime("secrets", "put", "billing", input=b"\xff\xfe", code=2).stderr
    assert "cannot be read: No such file" in duetime("secrets", "put", "billing", "--file", str(tmp_path / "none"), code=2).stderr
    assert "NOTHING is not set" in duetime("secrets", "put", "billing", "--from-env", "NOTHING", code=2).stderr
    assert "not both" in duetime("secrets", "put", "billing", "--from-env", "A", "--file", "b", code=2).stderr
    duetime("secrets", "put", "billing", PLANTED, input="", code=2)
    duetime("secrets", "put", "a\nb", input="value", code=2)
    monkeypatch.delenv("DUETIME_SECRET_KEYS")
    refused = duetime("secrets", "put", "billing", input=PLANTED, code=4).stderr
    assert "secrets cannot be stored without a key: make one with `duetime secrets new-key`" in refused
    refuse_planted(refused, "the message")
    monkeypatch.setenv("DUETIME_SECRET_KEYS", "2026a:short")
    assert "DUETIME_SECRET_KEYS: the key 2026a is not 32 bytes" in duetime("secrets", code=2).stderr


def test_a_new_key_can_be_used_at_once(duetime: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    made = duetime("secrets", "new-key", "2027a")
    assert "cannot be shown again" in made.stderr
    [key] = read_keys(made.stdout)
    assert key.id == "2027a"
    assert duetime("secrets", "new-key", "2027a").stdout != made.stdout
    [dated] = read_keys(duetime("secrets", "new-key").stdout)
    assert dated.id.startswith("2")
    assert "ID: key 1 has no id" in duetime("secrets", "new-key", "a b", code=2).stderr


def test_keys_are_changed_without_losing_a_secret_and_a_lost_key_is_found_by_the_doctor(
    duetime: CommandLine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUETIME_SECRET_KEYS", OLD)
    duetime("secrets", "put", "billing", input=PLANTED)
    monkeypatch.delenv("DUETIME_SECRET_KEYS")
    assert "1 secret cannot be checked: set DUETIME_SECRET_KEYS" in duetime("doctor").stdout
    monkeypatch.setenv("DUETIME_SECRET_KEYS", NEW)
    assert "no: this key is missing here" in duetime("secrets").stdout
    examined = duetime("doctor", code=1).stdout
    assert "problem: unreadable secret: billing: version 1" in examined
    assert "it was sealed with the key 2026a, and this process has 2026b" in examined
    rotated = duetime("secrets", "rotate", code=1)
    assert "no key here opens billing" in rotated.stderr
    monkeypatch.setenv("DUETIME_SECRET_KEYS", f"{NEW} {OLD}")
    assert "unreadable" not in duetime("doctor").stdout
    assert duetime("secrets", "rotate").stdout == "1 version sealed anew with the key 2026b\n"
    monkeypatch.setenv("DUETIME_SECRET_KEYS", NEW)
    assert "unreadable" not in duetime("doctor").stdout
    assert values(url, "billing") == (PLANTED,)
