"""Reading crontabs."""

import pytest

from duetime.errors import InvalidValue
from duetime.model.crontab import MOST_ENTRIES, Entry, read_crontab
from duetime.model.rules import Cron


def entries(text: str, *, system: bool = False, tz: str = "UTC") -> list[Entry]:
    crontab = read_crontab(text, system=system, tz=tz)
    assert not crontab.refusals
    return list(crontab.entries)


def refusals(text: str, *, system: bool = False) -> list[str]:
    return [str(each) for each in read_crontab(text, system=system).refusals]


def test_a_line_has_five_fields_and_a_command_whose_blanks_stay() -> None:
    [entry] = entries("*/5\t*  * * MON-FRI   /usr/bin/report  --to  'a  b'\n")
    assert entry.rule == Cron("*/5 * * * MON-FRI")
    assert entry.command == "/usr/bin/report  --to  'a  b'"
    assert (entry.line, entry.name, entry.user, entry.input, entry.environment) == (1, "report", None, None, {})


def test_comments_blank_lines_and_windows_line_ends_are_passed_over() -> None:
    text = "# m h dom mon dow command\r\n\r\n   # more\r\n0 4 * * * backup\r\n"
    assert [(entry.line, entry.command) for entry in entries(text)] == [(4, "backup")]


@pytest.mark.parametrize(
    ("word", "expression"),
    [("@hourly", "0 * * * *"), ("@Daily", "0 0 * * *"), ("@midnight", "0 0 * * *"), ("@weekly", "0 0 * * 0"), ("@yearly", "0 0 1 1 *")],
)
def test_shorthands_replace_the_fields(word: str, expression: str) -> None:
    from duetime.model.rules import plan_of

    [entry] = entries(f"{word} /usr/bin/report --all")
    assert entry.command == "/usr/bin/report --all"
    assert plan_of(entry.rule).after(0) == plan_of(Cron(expression)).after(0)


def test_a_reboot_is_refused_with_its_line_and_the_rest_is_read() -> None:
    crontab = read_crontab("0 4 * * * backup\n@reboot start-it\n0 5 * * * report\n")
    assert [entry.name for entry in crontab.entries] == ["backup", "report"]
    [refusal] = crontab.refusals
    assert (refusal.line, refusal.text) == (2, "@reboot start-it")
    assert str(refusal).startswith("line 2: @reboot has no instant")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("61 * * * * x", "minute must be 0–59"),
        ("0 0 31 2 * x", "day of month 31 never comes"),
        ("0 4 * * *", "there must be a command"),
        ("0 4 *", "expected a comment, NAME=VALUE, or five fields and a command"),
        ("@fortnightly x", "'@fortnightly' is unknown"),
        ("CRON_TZ=Europe/Bern", "Europe/Bern"),
        ("0 4 * * * % only input", "there must be a command"),
    ],
)
def test_a_line_that_cannot_be_read_is_refused_with_its_number(line: str, said: str) -> None:
    [refusal] = refusals(f"# first\n{line}\n")
    assert refusal.startswith("line 2: ")
    assert said in refusal


def test_variables_hold_for_the_lines_below_them() -> None:
    text = 'MAILTO=ops\n0 1 * * * first\nMAILTO = "a b"\nPATH=\'/bin: \'\n0 2 * * * second\n"SHELL"=/bin/sh\n0 3 * * * third\n'
    assert [dict(entry.environment) for entry in entries(text)] == [
        {"MAILTO": "ops"},
        {"MAILTO": "a b", "PATH": "/bin: "},
        {"MAILTO": "a b", "PATH": "/bin: ", "SHELL": "/bin/sh"},
    ]


def test_a_command_that_sets_variables_is_a_command() -> None:
    [entry] = entries("0 1 * * * LANG=C sort names")
    assert (entry.command, entry.name, entry.environment) == ("LANG=C sort names", "sort", {})


def test_the_zone_is_that_of_the_nearest_line_above() -> None:
    text = "0 1 * * * a\nCRON_TZ=Europe/Berlin\n0 1 * * * b\nTZ=Asia/Tokyo\n0 1 * * * c\nCRON_TZ=UTC\n0 1 * * * d\n"
    found = entries(text, tz="America/New_York")
    assert [entry.rule.tz for entry in found] == ["America/New_York", "Europe/Berlin", "Europe/Berlin", "UTC"]
    assert [dict(entry.environment) for entry in found] == [{}, {}, {"TZ": "Asia/Tokyo"}, {"TZ": "Asia/Tokyo"}]


def test_a_tz_line_decides_the_zone_where_no_cron_tz_stands_above() -> None:
    [entry] = entries("TZ=Asia/Tokyo\n0 1 * * * a\n")
    assert (entry.rule.tz, entry.environment) == ("Asia/Tokyo", {"TZ": "Asia/Tokyo"})


def test_a_zone_that_does_not_exist_is_refused_when_asked_for() -> None:
    with pytest.raises(InvalidValue, match="Mars"):
        read_crontab("", tz="Mars/Crater")


def test_the_first_percent_ends_the_command_and_the_rest_is_its_input() -> None:
    [entry] = entries("0 9 * * 1 mail -s report ops%Dear all,%%here it is%")
    assert entry.command == "mail -s report ops"
    assert entry.input == "Dear all,\n\nhere it is\n\n"


def test_an_escaped_percent_is_a_plain_one() -> None:
    [entry] = entries(r"0 9 * * * date +\%Y-\%m >> /tmp/a\b")
    assert (entry.command, entry.input) == (r"date +%Y-%m >> /tmp/a\b", None)


def test_a_system_crontab_names_a_user() -> None:
    first, second, third = entries(
        "17 * * * * root cd / && run-parts /etc/cron.hourly\n@daily www\tfetch  -q\n0 1 * * *\tops x", system=True
    )
    assert (first.user, first.command, first.name) == ("root", "cd / && run-parts /etc/cron.hourly", "run-parts")
    assert (second.user, second.command) == ("www", "fetch  -q")
    assert (third.user, third.command) == ("ops", "x")
    assert "a user and a command" in refusals("0 1 * * * root", system=True)[0]


def test_a_comment_right_above_names_or_explains_an_entry() -> None:
    text = "# Name: nightly backup\n0 1 * * * backup\n# keep the logs small\n0 2 * * * rotate\n# far away\n\n0 3 * * * sweep\n"
    assert [(entry.name, entry.note) for entry in entries(text)] == [
        ("nightly backup", ""),
        ("rotate", "keep the logs small"),
        ("sweep", ""),
    ]


def test_names_come_from_programs_and_are_numbered_where_they_are_equal() -> None:
    commands = ["/opt/a/backup.sh x", "/opt/b/backup.sh", "cd /srv && nice -n10 backup.sh", "(cd x; y)", "[ -x y ] && y"]
    text = "".join(f"0 1 * * * {command}\n" for command in commands)
    assert [entry.name for entry in entries(text)] == ["backup.sh", "backup.sh-2", "backup.sh-3", "cd", "entry"]


def test_the_number_of_entries_is_bounded() -> None:
    crontab = read_crontab("* * * * * x\n" * (MOST_ENTRIES + 2))
    assert len(crontab.entries) == MOST_ENTRIES
    assert [refusal.line for refusal in crontab.refusals] == [MOST_ENTRIES + 1, MOST_ENTRIES + 2]
