"""Failures by kind from the command line."""

from __future__ import annotations

from duetime.cli.operating.failures import bars
from tests.cli.conftest import CommandLine, Program


def test_failures_are_listed_shown_muted_and_retried(program: Program, duetime: CommandLine) -> None:
    with program.worker():
        for text in ("order 7", "order 8"):
            duetime("submit", "fail", f"text={text}", "--wait", code=1)
        [group] = duetime.json("failures")["items"]
        fingerprint = group["fingerprint"]
        assert (group["type"], group["message"], group["tasks"], group["attempts"]) == ("ValueError", "order #", 2, 2)
        listed = duetime.lines("failures")
        assert duetime.json("failures", "list")["items"][0]["fingerprint"] == fingerprint
        assert fingerprint in listed[1]
        assert "ValueError: order #" in listed[1]
        assert listed[1].rstrip().endswith("new")
        assert duetime.json("failures", "--handler", "greet")["items"] == []
        shown = duetime("failures", "show", fingerprint).stdout
        assert "ValueError: order 8" in shown
        assert "raise ValueError(text)" in shown, "with the traceback of the last task"
        assert duetime.json("failures", "show", fingerprint)["fingerprint"] == fingerprint

        assert "until" in duetime("failures", "mute", fingerprint, "--for", "7d").stdout
        assert "no failure that is not muted" in duetime("failures").stderr
        assert "muted until" in duetime.lines("failures", "--muted")[1]
        assert duetime.lines("failures", "unmute", fingerprint) == ["no longer muted: ValueError: order # in fail"]
        assert duetime.json("failures", "mute", fingerprint, "--until", "2199-01-01T00:00:00Z")["muted_until_at"] == "2199-01-01T00:00:00Z"

        assert "2 tasks would be changed" in duetime("failures", "retry", fingerprint, "--dry-run").stdout
        again = duetime("failures", "retry", fingerprint, "--canary", "--rate", "50", "--yes", code=1)
        assert again.stdout.startswith("1 task"), "the first one failed again, and the other was left alone"
        assert "1 of 1 tasks failed again" in again.stderr
        [begun] = duetime.json("operations")["items"]
        assert (begun["rate"], begun["canary"]) == (50, {"share": 1, "failed": 10})
        assert duetime("failures", "retry", fingerprint, "--yes").stdout.startswith("2 tasks")


def test_what_is_wrong_is_said(program: Program, duetime: CommandLine) -> None:
    duetime("migrate")
    assert "no failure since" in duetime("failures").stderr
    assert "92 days" in duetime("failures", "show", "0" * 16, code=3).stderr
    assert "16 hexadecimal digits" in duetime("failures", "show", "x", code=2).stderr
    assert "say until when" in duetime("failures", "mute", "0" * 16, code=2).stderr
    assert "not both" in duetime("failures", "mute", "0" * 16, "--for", "1d", "--until", "2199-01-01T00:00:00Z", code=2).stderr


def test_bars_show_everything_that_is_not_zero() -> None:
    assert bars([0, 1, 1_000, 500]) == " ▁█▄"
    assert bars([0, 0]) == "  "
    assert bars([]) == ""
