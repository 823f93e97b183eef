"""Schedules and calendars from the command line."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import CommandLine, Program, Shop, until

FAR = ("--handler", "greet", "--cron", "0 9 1 1 *", "name=Ada")

_numbers = itertools.count()


def put(duetime: CommandLine, name: str, *options: str) -> Any:
    return duetime.json("schedules", "put", name, *(options or FAR))


# ---- making and looking ----


def test_a_schedule_is_made_listed_shown_and_deleted(duetime: CommandLine, shop: Shop) -> None:
    assert duetime("schedules").stderr == "no schedules match; `duetime schedules put` makes one\n"
    [said] = duetime.lines("schedules", "put", "yearly", *FAR, "--tz", "Europe/Berlin", "--note", "for the new year")
    assert said.startswith("yearly: cron 0 9 1 1 * Europe/Berlin; next ")
    assert "-01-01 09:00 CET (in " in said
    listed = duetime.lines("schedules")
    assert listed == duetime.lines("schedules", "list")
    assert listed[0].split() == ["name", "rule", "next", "last", "health", "handler", "note"]
    assert "ok      greet    for the new year" in listed[1]
    shown = duetime("schedules", "show", "yearly").stdout
    assert '{"name":"Ada"}' in shown
    assert (shown.count("-01-01 09:00 CET"), shown.count("-01-01 09:00:00 CET")) == (1, 5)
    assert duetime.lines("schedules", "delete", "yearly") == ["deleted yearly"]
    assert "there is no schedule 'yearly'" in duetime("schedules", "show", "yearly", code=3).stderr


def test_json_has_instants_in_utc_and_all_facts(duetime: CommandLine, shop: Shop) -> None:
    made = put(duetime, "yearly", *FAR, "--tz", "Europe/Berlin", "--count", "7")
    assert made["next_at"].endswith("-01-01T08:00:00Z")
    assert (made["name"], made["handler"], made["health"], made["zone"]) == ("yearly", "greet", "ok", "Europe/Berlin")
    assert made["rule"] == {"rule": "cron", "expression": "0 9 1 1 *", "tz": "Europe/Berlin", "gap": "run"}
    shown = duetime.json("schedules", "show", "yearly")
    assert {name: shown[name] for name in made} == made
    assert (len(shown["following"]), shown["skips"]) == (5, [])
    assert duetime.json("schedules")["items"] == [made]


def test_only_some_are_listed(duetime: CommandLine, shop: Shop) -> None:
    put(duetime, "a")
    put(duetime, "b", "--handler", "fail", "--every", "1d", "text=x")
    duetime("schedules", "pause", "a")
    names = [
        [item["name"] for item in duetime.json("schedules", *filters)["items"]]
        for filters in ((), ("--handler", "fail"), ("--paused",), ("list", "--handler", "fail", "--paused"))
    ]
    assert names == [["a", "b"], ["b"], ["a"], []]


def test_all_options_of_a_schedule_are_kept(duetime: CommandLine, shop: Shop) -> None:
    options = ["--handler", "greet", "--every", "10m phase 30s", "--at", "2040-01-01T00:00:00Z", "--payload", '{"name": "Ada"}', "times=2"]
    options += ["--start", "2030-01-01T00:00:00Z", "--end", "2031-01-01T00:00:00Z", "--count", "9", "--jitter", "5s", "--grace", "1m"]
    options += ["--missed", "all within 6h at most 100 at 10/min", "--overlap", "allow 2", "--pause-after", "3", "--collection", "eu"]
    options += ["--priority", "7", "--timeout", "20", "--expires", "1h", "--meta", "tenant=x", "--note", "why"]
    schedule = put(duetime, "full", *options)["schedule"]
    assert schedule["payload"] == {"name": "Ada", "times": 2}
    assert [part["rule"] for part in schedule["rule"]["rules"]] == ["every", "at"]
    assert (schedule["start"], schedule["end"], schedule["count"]) == ("2030-01-01T00:00:00Z", "2031-01-01T00:00:00Z", 9)
    assert (schedule["jitter"], schedule["grace"], schedule["timeout"], schedule["expires"]) == (5, 60, 20, 3_600)
    assert (schedule["missed"], schedule["overlap"], schedule["pause_after"]) == ("all within 6h at most 100 at 10/min", "allow 2", 3)
    assert (schedule["collection"], schedule["priority"], schedule["meta"], schedule["note"]) == ("eu", 7, {"tenant": "x"}, "why")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--handler", "greet", "name=x"], 2, "say when: give --cron"),
        (["--handler", "greet", "--cron", "0 0 31 2 *", "name=x"], 2, "day of month 31 never comes"),
        (["--handler", "greet", "--cron", "0 0 * * *", "--tz", "Mars/Crater", "name=x"], 2, "Mars/Crater"),
        (["--handler", "greet", "--every", "10m", "--tz", "UTC", "name=x"], 2, "--tz is the zone of --cron"),
        (["--handler", "greet", "--every", "0.5s", "name=x"], 2, "at least 1"),
        (["--handler", "greet", "--every", "10m", "--missed", "some", "name=x"], 2, "missed must be skip, latest"),
        (["--handler", "greet", "--every", "10m", "--overlap", "maybe", "name=x"], 2, "overlap must be skip, queue one"),
        (["--handler", "greet", "--every", "10m", "--calendar", "none", "name=x"], 2, "calendar 'none' is unknown"),
        (
            ["--handler", "greet", "--every", "10m", "--end", "2030-01-01T00:00Z", "--start", "2031-01-01T00:00Z", "name=x"],
            2,
            "end must not",
        ),
        (["--handler", "greet", "--every", "10m", "nome=x"], 1, "name"),
        (["--handler", "great", "--every", "10m"], 3, "great"),
        (["--handler", "greet", "--every", "10m", "name=x", "--payload", '{"name": "y"}'], 2, "both as NAME=VALUE and in --payload"),
    ],
)
def test_what_cannot_be_meant_is_refused(duetime: CommandLine, shop: Shop, options: list[str], code: int, said: str) -> None:
    assert said in duetime("schedules", "put", "wrong", *options, code=code).stderr
    assert duetime.json("schedules")["items"] == []


def test_a_taken_name_is_replaced_kept_or_refused(duetime: CommandLine, shop: Shop) -> None:
    put(duetime, "a")
    assert "--if-exists replace" in duetime("schedules", "put", "a", *FAR, "--if-exists", "error", code=4).stderr
    other = ("--handler", "greet", "--every", "1d", "name=x")
    assert put(duetime, "a", *other, "--if-exists", "keep")["description"] == "cron 0 9 1 1 * UTC"
    assert put(duetime, "a", *other)["description"] == "every day"


def test_a_rule_comes_from_a_file_or_in_words(duetime: CommandLine, shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "rule.json").write_text('{"rule": "calendar", "unit": "month", "on": "last business day", "at": "18:00"}')
    assert "last business day" in put(duetime, "a", "--handler", "greet", "--rule", "@rule.json", "name=x")["description"]
    assert put(duetime, "b", "--handler", "greet", "--rule", "after end 60s", "name=x")["description"].startswith("1 minute after the end")
    assert put(duetime, "c", "--handler", "greet", "--after-end", "2m", "name=x")["rule"]["delay"] == 120


def test_a_handler_that_nobody_has_declared_needs_a_word(duetime: CommandLine, shop: Shop) -> None:
    assert put(duetime, "later", "--handler", "planned", "--every", "1h", "--allow-unknown")["handler"] == "planned"


# ---- previewing ----


def test_a_rule_is_previewed_without_a_store(duetime: CommandLine) -> None:
    lines = duetime.lines(
        "schedules", "preview", "--cron", "30 2 * * *", "--tz", "Europe/Berlin", "--after", "2030-03-30T12:00Z", "--count", "2"
    )
    assert [line.split("  ")[0] for line in lines] == ["Sun 2030-03-31 03:00:00 CEST", "Mon 2030-04-01 02:30:00 CEST"]
    found = duetime.json("schedules", "preview", "--at", "2040-01-01T09:00+01:00")
    assert found == {"items": [{"planned_at": "2040-01-01T08:00:00Z", "local": "2040-01-01T08:00:00+00:00"}], "next": None}
    assert duetime("schedules", "preview", "--at", "2001-01-01T09:00Z").stderr == "nothing is planned\n"


def test_a_stored_schedule_is_previewed_by_name(duetime: CommandLine, shop: Shop) -> None:
    put(duetime, "a")
    [item] = duetime.json("schedules", "preview", "a", "--count", "1", "--after", "2040-06-01T00:00:00Z")["items"]
    assert item["planned_at"] == "2041-01-01T09:00:00Z"
    duetime("schedules", "preview", "b", code=3)
    duetime("schedules", "preview", code=2)
    duetime("schedules", "preview", "a", "--every", "1h", code=2)


# ---- control ----


def test_schedules_of_a_folder_are_listed_copied_and_paused_together(duetime: CommandLine, shop: Shop) -> None:
    for name in ("reports/daily", "reports/monthly", "sweep"):
        put(duetime, name)
    [said] = duetime.lines("schedules", "copy", "reports/daily", "reports/us")
    assert said.startswith("copied reports/daily to reports/us, next ")
    names = ["reports/daily", "reports/monthly", "reports/us"]
    assert [each["name"] for each in duetime.json("schedules", "--prefix", "reports/")["items"]] == names
    assert duetime.lines("schedules", "pause", "--prefix", "reports/") == [f"paused {name}" for name in names]
    assert [each["name"] for each in duetime.json("schedules", "--paused")["items"]] == names
    for wrong in ((), ("sweep", "--prefix", "reports/")):
        assert "give the names of schedules, or --prefix" in duetime("schedules", "delete", *wrong, code=2).stderr
    assert "there is no schedule 'none'" in duetime("schedules", "copy", "none", "other", code=3).stderr


def test_schedules_are_paused_with_a_note_and_resumed(duetime: CommandLine, shop: Shop) -> None:
    put(duetime, "a")
    put(duetime, "b")
    assert duetime.lines("schedules", "pause", "a", "b", "--note", "moving house") == ["paused a", "paused b"]
    assert "moving house" in duetime("schedules").stdout
    info = duetime.json("schedules", "show", "a")
    assert (info["health"], info["paused"]["note"], info["next_at"]) == ("paused", "moving house", None)
    assert duetime.lines("schedules", "resume", "a")[0].startswith("resumed a, next ")
    wrong = duetime("schedules", "resume", "nobody", "b", "--catch-up", code=3)
    assert "there is no schedule 'nobody'" in wrong.stderr
    assert wrong.stdout.startswith("resumed b")


def test_a_trigger_runs_the_work_now_and_leaves_the_rule_alone(duetime: CommandLine, shop: Shop) -> None:
    before = put(duetime, "a")
    own = duetime("schedules", "trigger", "a").stdout.strip()
    other = duetime.json("schedules", "trigger", "a", "times=3")
    assert other["payload"] == {"name": "Ada", "times": 3}
    assert duetime.json("task", own)["payload"] == {"name": "Ada"}
    assert duetime.json("schedules", "show", "a")["next_at"] == before["next_at"]
    duetime("schedules", "trigger", "a", "--overlap", "skip", code=4)
    assert set(duetime.ids("--schedule", "a")) == {own, other["id"]}


def test_a_worker_fires_schedules_and_a_trigger_can_be_waited_for(program: Program, duetime: CommandLine) -> None:
    with program.worker():
        put(duetime, "often", "--handler", "greet", "--every", "1s", "name=Ada")
        until(lambda: duetime.json("schedules", "show", "often")["fired"] > 1, lambda: "two occurrences to be fired")
        until(lambda: duetime.json("schedules", "show", "often")["last"] is not None, lambda: "the end of the first run to be known")
        last = duetime.json("schedules", "show", "often")["last"]
        assert (last["state"], last["result"]) == ("succeeded", "hello Ada")
        assert duetime("schedules", "trigger", "often", "name=Eve", "--wait").stdout == '"hello Eve"\n'


def test_a_backfill_counts_asks_and_submits(duetime: CommandLine, shop: Shop) -> None:
    put(duetime, "daily", "--handler", "greet", "--every", "1d", "name=Ada")
    stretch = ("schedules", "backfill", "daily", "--from", "2020-01-01T00:00Z", "--to", "2020-01-05T00:00Z")
    assert duetime.lines(*stretch, "--dry-run") == ["daily: 5 occurrences would be run"]
    assert "this would run 5 occurrences of daily; add --yes" in duetime(*stretch, code=2).stderr
    assert duetime.ids("--schedule", "daily") == []
    done = duetime.json(*stretch, "--yes", "--concurrency", "2")
    assert (len(done["tasks"]), done["planned"][0], done["dry_run"]) == (5, "2020-01-01T00:00:00Z", False)
    assert set(duetime.ids("--schedule", "daily")) == set(done["tasks"])
    assert duetime.lines(*stretch, "--yes") == ["daily: 0 occurrences submitted, 5 left alone because they have a task already"]


# ---- as code ----

DECLARING = """
from duetime import App

app = App()


@app.schedule(cron="0 9 * * *")
async def morning() -> None: ...


@app.schedule(every=3600, note="{note}")
async def hourly() -> None: ...
"""


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(tmp_path)

    def write(source: str) -> str:
        name = f"declared_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(source)
        return f"{name}:app"

    return write


def test_the_difference_is_shown_before_it_is_applied(duetime: CommandLine, shop: Shop, declare: Any) -> None:
    put(duetime, "by hand")
    app = declare(DECLARING.format(note="first"))
    assert duetime("schedules", "plan", app, code=1).stdout.splitlines() == ["+ morning: add", "+ hourly: add", "add 2"]
    assert "this would add 2; add --yes to do it" in duetime("schedules", "apply", app, code=2).stderr
    duetime("schedules", "apply", app, "--yes")
    assert duetime.lines("schedules", "plan", app) == ["nothing differs"]
    assert duetime.lines("schedules", "apply", app) == ["nothing differs"]

    changed = declare(DECLARING.format(note="second"))
    assert duetime("schedules", "plan", changed, code=1).stdout.splitlines() == [
        "~ hourly: change",
        '    note: "first" → "second"',
        "change 1",
    ]
    answer = duetime.json("schedules", "apply", changed, "--yes")
    assert [each["name"] for each in answer["differences"] if each["action"] == "change"] == ["hourly"]

    fewer = declare(DECLARING.format(note="second").partition("\n\n@app.schedule(every")[0])
    assert "- hourly: remove" in duetime("schedules", "plan", fewer, code=1).stdout
    duetime("schedules", "apply", fewer, "--yes")
    assert [item["name"] for item in duetime.json("schedules")["items"]] == ["by hand", "morning"]


def test_an_app_is_needed_for_code(duetime: CommandLine, shop: Shop) -> None:
    assert "which App?" in duetime("schedules", "plan", code=2).stderr
    assert "which App?" in duetime("schedules", "apply", code=2).stderr


# ---- crontabs ----

CRONTAB = """
MAILTO=ops
CRON_TZ=Europe/Berlin
# clear the carts
*/5 * * * * /usr/bin/greet --all
# name: nightly
30 2 * * * cd /srv && greet%hello
"""


def test_a_crontab_is_shown_and_imported(duetime: CommandLine, shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "crontab").write_text(CRONTAB)
    options = ("schedules", "import", "crontab", "--handler", "run_command", "--prefix", "cron.", "--allow-unknown")
    shown = duetime(*options, "--dry-run")
    assert shown.stderr == "2 schedules would be imported\n"
    assert "cron.greet" in shown.stdout
    assert duetime.json("schedules")["items"] == []
    assert duetime(*options, "--leave-out", "environment").stderr == "2 schedules imported\n"
    first, second = (item["schedule"] for item in duetime.json("schedules")["items"])
    assert (first["name"], first["note"], first["payload"]) == ("cron.greet", "clear the carts", {"command": "/usr/bin/greet --all"})
    assert second["rule"] == {"rule": "cron", "expression": "30 2 * * *", "tz": "Europe/Berlin", "gap": "run"}
    assert (second["name"], second["payload"]) == ("cron.nightly", {"command": "cd /srv && greet", "input": "hello\n"})
    assert "cron.greet, cron.nightly; choose a --prefix" in duetime(*options, code=4).stderr
    duetime(*options, "--if-exists", "replace")
    assert duetime.json("schedules")["items"][0]["schedule"]["payload"]["environment"] == {"MAILTO": "ops"}


def test_an_import_says_of_which_entries_nobody_named_the_zone(duetime: CommandLine, shop: Shop) -> None:
    options = ("schedules", "import", "-", "--handler", "x", "--dry-run")
    unsure = "0 1 * * * a\n0 2 * * * b\n"
    said = "2 entries have no CRON_TZ or TZ above and run by UTC; if cron ran them by another zone, name it with --tz\n"
    assert duetime(*options, input=unsure).stderr == said + "2 schedules would be imported\n"
    assert "Berlin" in duetime(*options, "--tz", "Europe/Berlin", input=unsure).stdout
    for named in ("CRON_TZ=Asia/Tokyo", "TZ=Asia/Tokyo"):
        partly = duetime(*options, input=f"0 1 * * * a\n{named}\n0 2 * * * b\n")
        assert partly.stderr.startswith("1 entry has no CRON_TZ or TZ above and runs by UTC")
        assert duetime(*options, input=f"{named}\n{unsure}").stderr == "2 schedules would be imported\n"
    for zone in ("UTC", "Asia/Tokyo"):
        assert duetime(*options, "--tz", zone, input=unsure).stderr == "2 schedules would be imported\n"


def test_lines_that_cannot_be_imported_stop_it_unless_they_are_skipped(duetime: CommandLine, shop: Shop) -> None:
    options = ("schedules", "import", "-", "--handler", "x", "--allow-unknown", "--system", "--tz", "Asia/Tokyo")
    text = "@reboot root start\n0 25 * * * root never\n0 5 * * * root report\n"
    refused = duetime(*options, input=text, code=1)
    assert refused.stderr.startswith("duetime: line 1: @reboot has no instant")
    assert "duetime: line 2: expression: hour must be 0–23" in refused.stderr
    assert duetime.json("schedules")["items"] == []
    duetime(*options, "--skip-refused", input=text)
    [item] = duetime.json("schedules")["items"]
    assert (item["schedule"]["payload"], item["zone"]) == ({"command": "report", "user": "root"}, "Asia/Tokyo")


def test_retries_that_last_into_the_next_run_are_told(duetime: CommandLine, shop: Shop) -> None:
    said = duetime("schedules", "put", "often", "--handler", "greet", "name=x", "--every", "10s").stderr
    assert "the retries of a run may last 15.0 s, and the next one is planned 10.0 s after it: then overlap='skip' decides" in said
    assert "the retries of a run may last 15.0 s" in duetime("schedules", "show", "often").stdout
    assert duetime("schedules", "put", "seldom", "--handler", "greet", "name=x", "--every", "1m").stderr == ""
    assert duetime.json("schedules", "show", "seldom")["warning"] == ""
    assert duetime("schedules", "put", "beside", "--handler", "greet", "name=x", "--every", "10s", "--overlap", "allow").stderr == ""


# ---- calendars ----


def test_calendars_are_made_listed_used_and_deleted(duetime: CommandLine, shop: Shop) -> None:
    assert duetime("calendars").stderr == "there are no calendars; `duetime calendars put` makes one\n"
    duetime("calendars", "put", "holidays", "--date", "2030-04-22", "--yearly", "12-25", "--yearly", "12-26", "--tz", "Europe/Berlin")
    duetime("calendars", "put", "office", "--include", "--weekdays", "mon-fri", "--times", "09:00-17:00", "--also", "holidays")
    assert duetime.lines("calendars") == duetime.lines("calendars", "list")
    holidays, office = duetime.json("calendars")["items"]
    assert (holidays["name"], holidays["mode"], holidays["yearly"]) == ("holidays", "exclude", ["12-25", "12-26"])
    assert duetime.json("calendars", "show", "office") == office
    assert "permits what matches" in duetime("calendars", "show", "office").stdout
    [first] = duetime.json("schedules", "preview", "--every", "1h", "--calendar", "office", "--count", "1", "--after", "2030-04-19T17:00Z")[
        "items"
    ]
    assert first["planned_at"] == "2030-04-23T09:00:00Z"
    put(duetime, "a", *FAR, "--calendar", "office")
    assert "is used by schedule 'a'" in duetime("calendars", "delete", "office", code=4).stderr
    assert "is used by calendar 'office'" in duetime("calendars", "delete", "holidays", code=4).stderr
    duetime("schedules", "delete", "a")
    assert duetime.lines("calendars", "delete", "office") == ["deleted office"]
    duetime("calendars", "show", "office", code=3)
    duetime("calendars", "put", "night", "--cron", "* 22-23,0-5 * * *")
    assert "* 22-23,0-5 * * *" in duetime("calendars").stdout
    assert "* 22-23,0-5 * * *" in duetime("calendars", "show", "night").stdout


def test_a_calendar_is_read_from_json_as_it_is_shown(duetime: CommandLine, shop: Shop) -> None:
    duetime("calendars", "put", "office", "--include", "--weekdays", "mon-fri")
    shown = duetime("calendars", "show", "office", "--json").stdout
    duetime("calendars", "put", "copy", "--definition", "-", input=shown)
    assert duetime.json("calendars", "show", "copy") == {**duetime.json("calendars", "show", "office"), "name": "copy"}
    assert "not both" in duetime("calendars", "put", "copy", "--definition", "{}", "--include", code=2).stderr
    assert "must say which time it means" in duetime("calendars", "put", "copy", code=2).stderr
    assert "unknown" in duetime("calendars", "put", "copy", "--definition", '{"days": "x"}', code=2).stderr
