"""Forecasts from the command line."""

from datetime import UTC, datetime

from tests.cli.conftest import CommandLine, Shop


def put(duetime: CommandLine, name: str, *options: str) -> None:
    duetime("schedules", "put", name, *options)


def test_a_forecast_is_a_plot_and_tables_within_80_columns(duetime: CommandLine, shop: Shop) -> None:
    minute = (datetime.now(UTC).minute + 30) % 60  # so that neither end of the forecast cuts a run short
    put(duetime, "hourly", "--handler", "greet", "--cron", f"{minute} * * * *", "name=Ada")
    put(duetime, "noon", "--handler", "greet", "--cron", f"{minute} 12 * * *", "name=Eve")
    found = duetime("schedules", "forecast", "--days", "2", "--tz", "Europe/Berlin")
    lines = found.stdout.splitlines()
    assert ": 2 schedules, 50 runs, 50.0 s of work, at most 2 at once" in lines[0]
    assert lines[2].split() == ["00", "03", "06", "09", "12", "15", "18", "21"]
    assert "a full block is 2.0 s of work in an hour" in lines
    [busiest] = [line for line in lines if line.startswith("busiest minute: ")]
    assert busiest.endswith(f":{minute:02} with 2 starts: hourly, noon")
    assert max(len(line) for line in lines if "█" in line) <= 80
    assert next(line for line in lines if line.startswith("hourly ")).split() == ["hourly", "greet", "48", "0", "48.0", "s", "1.0", "s*"]
    assert "* assumed, because no run of the handler has succeeded yet" in found.stderr
    assert "no collisions: there are slots enough" in found.stderr
    assert "hours with less load not shown; --all shows them" in found.stderr
    assert "not shown" not in duetime("schedules", "forecast", "--days", "2", "--all").stderr


def test_durations_are_those_of_past_runs(duetime: CommandLine, shop: Shop) -> None:
    put(duetime, "daily", "--handler", "greet", "--every", "1d", "name=Ada")
    assert duetime.json("schedules", "forecast")["schedules"][0]["measured"] is False
    duetime.submit("greet", "name=Eve")
    shop.work()
    [outlook] = duetime.json("schedules", "forecast")["schedules"]
    assert outlook["measured"] is True
    assert outlook["duration"] < 1.0


def test_json_has_every_hour_and_instants_in_utc(duetime: CommandLine, shop: Shop) -> None:
    put(duetime, "hourly", "--handler", "greet", "--every", "1h", "name=Ada")
    put(duetime, "resting", "--handler", "greet", "--every", "1h", "name=Ada")
    duetime("schedules", "pause", "resting")
    found = duetime.json("schedules", "forecast", "--days", "1")
    assert (found["runs"], found["cut"], found["paused"], found["broken"], found["collisions"]) == (24, False, ["resting"], {}, [])
    assert len(found["hours"]) in (24, 25)
    assert all(hour["at"].endswith(":00:00Z") for hour in found["hours"])
    assert found["busiest"]["schedules"] == ["hourly"]
    assert "left out because it is paused: resting" in duetime("schedules", "forecast").stderr


def test_collisions_are_told_where_slots_are_too_few(duetime: CommandLine, shop: Shop) -> None:
    for number in range(51):  # the handler has 50 slots
        put(duetime, f"s{number:02}", "--handler", "greet", "--cron", "0 12 * * *", "name=Ada")
    found = duetime("schedules", "forecast", "--days", "1")
    row = next(line for line in found.stdout.splitlines() if line.startswith("greet "))
    assert row.split()[:4] == ["greet", "51", "50", "1"]
    assert row.endswith("s00, s01, s02, s03, s04 and 46 more")


def test_nothing_to_forecast_is_said(duetime: CommandLine, shop: Shop) -> None:
    assert "no schedule will fire in this time" in duetime("schedules", "forecast").stderr
    assert "days must be more than 0 and at most 366" in duetime("schedules", "forecast", "--days", "0", code=2).stderr
    assert "Mars" in duetime("schedules", "forecast", "--tz", "Mars/Crater", code=2).stderr


def test_a_schedule_whose_calendar_has_vanished_is_named_and_left_out(duetime: CommandLine, shop: Shop) -> None:
    duetime("calendars", "put", "weekend", "--weekdays", "sat,sun")
    put(duetime, "daily", "--handler", "greet", "--every", "1d", "--calendar", "weekend", "name=Ada")

    async def lose() -> None:
        async with shop.app:
            await shop.app.store.put_calendar("weekend", None)

    shop.do(lose())
    assert "left out: daily: calendar 'weekend' is unknown" in duetime("schedules", "forecast").stderr
    assert "broken: calendar 'weekend' is unknown" in duetime("schedules", "show", "daily").stdout
