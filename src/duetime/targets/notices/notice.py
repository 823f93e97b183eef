"""A notice, the payload of a task of `duetime.notify`, and how it is written for each kind of channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.clock import to_datetime
from duetime.model.alerts.course import Change, ChangeKind
from duetime.model.wording import count

if TYPE_CHECKING:
    from email.message import EmailMessage

NOTIFY = "duetime.notify"
LONGEST_SUBJECT = 150
SLACK_TEXT = 2_900  # characters of a block; Slack takes 3,000
_HEADS: Mapping[ChangeKind, str] = {
    ChangeKind.FIRING: "FIRING",
    ChangeKind.WORSE: "WORSE",
    ChangeKind.REPEATED: "STILL FIRING",
    ChangeKind.RECOVERED: "RECOVERED",
    ChangeKind.FLAPPING: "FLAPPING",
}


class ToldChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change as receivers read it."""

    kind: ChangeKind
    rule: str
    subject: str
    text: str
    at: datetime
    since: datetime
    note: str = ""


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one channel is told in one message. `more` changes are not listed. `test`: somebody tries the channel."""

    channel: str
    changes: tuple[ToldChange, ...] = ()
    more: int = 0
    test: bool = False


read_notice = msgspec.json.Decoder(Notice).decode


def notice_of(channel: str, changes: Sequence[Change], more: int = 0) -> Notice:
    told = (
        ToldChange(
            kind=each.kind,
            rule=each.rule,
            subject=each.subject,
            text=each.text,
            at=to_datetime(each.at),
            since=to_datetime(each.since),
            note=each.note,
        )
        for each in changes
    )
    return Notice(channel=channel, changes=tuple(told), more=more)


def headline(notice: Notice) -> str:
    """Say in one line what a notice is about."""
    if notice.test:
        return f"[Duetime] A test of the channel {notice.channel}"
    if len(notice.changes) == 1 and not notice.more:
        [change] = notice.changes
        return f"[Duetime] {_HEADS[change.kind]}: {change.rule}: {change.subject}"
    kinds = {kind: sum(each.kind is kind for each in notice.changes) for kind in ChangeKind}
    told = ", ".join(f"{number} {_HEADS[kind].lower()}" for kind, number in kinds.items() if number)
    return f"[Duetime] {count(len(notice.changes) + notice.more, 'change')} of alerts: {told}{', and more' if notice.more else ''}"


def lines(notice: Notice) -> list[str]:
    """Say the same in full."""
    if notice.test:
        return [f"This is a test of the channel {notice.channel}. Alerts will arrive here."]
    found = [f"{_HEADS[each.kind]}  {each.rule}: {each.text}{f' ({each.note})' if each.note else ''}" for each in notice.changes]
    return [*found, f"… and {count(notice.more, 'change')} more"] if notice.more else found


def mail_of(notice: Notice, *, sender: str, to: Sequence[str], message_id: str, at: datetime) -> EmailMessage:
    """Return a notice as mail. What texts contain cannot become a header: line breaks are taken out of the subject."""
    from email.message import EmailMessage  # every program would pay 5 ms for it
    from email.utils import format_datetime

    message = EmailMessage()
    message["From"] = sender
    message["To"] = ", ".join(to)
    message["Subject"] = _one_line(headline(notice))[:LONGEST_SUBJECT]
    message["Date"] = format_datetime(at)
    message["Message-ID"] = message_id
    message["Auto-Submitted"] = "auto-generated"
    message.set_content("\n\n".join(_one_line(line) for line in lines(notice)) + "\n")
    return message


def slack_of(notice: Notice) -> bytes:
    """Return a notice as Slack and its like take it; nothing in a text is markup, a link or a mention."""
    blocks: list[dict[str, Any]] = []
    used = 0
    for line in (headline(notice), *lines(notice)):
        text = escaped(_one_line(line))[:SLACK_TEXT]
        if len(blocks) == 40 or used + len(text) > 12_000:
            break
        used += len(text)
        blocks.append({"type": "section", "text": {"type": "plain_text", "text": text, "emoji": False}})
    return msgspec.json.encode({"text": escaped(_one_line(headline(notice))), "blocks": blocks})


def webhook_of(notice: Notice) -> bytes:
    """Return a notice as JSON for programs."""
    if notice.test:
        kind = "duetime.alert.test"
    elif len(notice.changes) == 1 and not notice.more:
        kind = f"duetime.alert.{notice.changes[0].kind}"
    else:
        kind = "duetime.alerts"
    return msgspec.json.encode({"type": kind, "channel": notice.channel, "changes": notice.changes, "more": notice.more})


def escaped(text: str) -> str:
    """Return a text as Slack shows it, instead of as its markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _one_line(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)
