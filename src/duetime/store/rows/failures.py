"""Failures as rows of tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from duetime.clock import Instant
from duetime.model.failures import Bucket, FailureGroup, GroupFacts, Kind, Tally, bucket_of, fold, kind_of
from duetime.model.outcome import Settlement
from duetime.model.task import State

_decode_kind = msgspec.json.Decoder(Kind).decode
_decode_facts = msgspec.json.Decoder(GroupFacts).decode


def write_kind(settlement: Settlement) -> str | None:
    """Return what is told of the kind of a failure; None if it is no failure."""
    if settlement.error is None or not settlement.error.fingerprint:
        return None
    return msgspec.json.encode(kind_of(settlement.handler, settlement.error)).decode()


def tally_rows(failing: Iterable[Settlement], now: Instant) -> list[tuple[Any, ...]]:
    """Return what to count of failures that are written together, in the columns of `insert_tally`; other settlements are left out."""
    by_fingerprint: defaultdict[str, list[Settlement]] = defaultdict(list)
    for settlement in failing:
        if settlement.fingerprint is not None:
            by_fingerprint[settlement.fingerprint].append(settlement)
    return [
        (
            *(fingerprint, some[-1].handler, now, len(some), sum(each.state is State.FAILED for each in some)),
            *(some[-1].id, write_kind(some[-1])),
        )
        for fingerprint, some in by_fingerprint.items()
    ]


def read_tally(row: Sequence[Any]) -> Tally:
    """Turn the columns of a tally, its kind as text, into a value."""
    fingerprint, at, attempts, tasks, sample, kind = row
    return Tally(fingerprint, at, attempts, tasks, sample, _decode_kind(kind))


def folded(known: Iterable[tuple[str, str]], tallies: Iterable[Tally]) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return what to store of some tallies, given the facts of kinds that are known: the rows of groups, and those to add to counts."""
    facts = {fingerprint: _decode_facts(text) for fingerprint, text in known}
    more: defaultdict[str, list[Tally]] = defaultdict(list)
    counts: defaultdict[tuple[str, Instant], list[int]] = defaultdict(lambda: [0, 0])
    for tally in tallies:
        more[tally.fingerprint].append(tally)
        sums = counts[tally.fingerprint, bucket_of(tally.at)]
        sums[0] += tally.attempts
        sums[1] += tally.tasks
    groups = []
    for fingerprint, some in sorted(more.items()):
        now_known = fold(facts.get(fingerprint), some)
        groups.append((fingerprint, now_known.kind.handler, now_known.last_at, msgspec.json.encode(now_known).decode()))
    return groups, [(*key, *sums) for key, sums in sorted(counts.items())]


def assembled(rows: Iterable[Sequence[Any]], since: Instant) -> list[FailureGroup]:
    """Turn the rows of `failure_rows` into groups, the latest first, as if all tallies had been folded."""
    facts: dict[str, GroupFacts] = {}
    mutes: dict[str, tuple[Instant | None, str]] = {}
    tallies: defaultdict[str, list[Tally]] = defaultdict(list)
    counts: defaultdict[str, defaultdict[Instant, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for kind, fingerprint, at, attempts, tasks, sample, text, muted_until_at, muted_by in rows:
        match kind:
            case "group":
                facts[fingerprint] = _decode_facts(text)
                mutes[fingerprint] = muted_until_at, muted_by
                continue
            case "tally":
                tallies[fingerprint].append(read_tally((fingerprint, at, attempts, tasks, sample, text)))
        bucket = bucket_of(at)
        if bucket >= bucket_of(since):
            sums = counts[fingerprint][bucket]
            sums[0] += attempts
            sums[1] += tasks
    for fingerprint, some in tallies.items():
        facts[fingerprint] = fold(facts.get(fingerprint), some)
    groups = [
        FailureGroup(
            fingerprint=fingerprint,
            facts=known,
            buckets=[Bucket(at, *sums) for at, sums in sorted(counts[fingerprint].items())],
            muted_until_at=mutes.get(fingerprint, (None, ""))[0],
            muted_by=mutes.get(fingerprint, (None, ""))[1],
        )
        for fingerprint, known in facts.items()
    ]
    return sorted(groups, key=lambda group: (-group.facts.last_at, group.fingerprint))
