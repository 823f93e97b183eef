"""The rules of limits that the store counts: names of partitions, and the bound of rates in every time."""

from __future__ import annotations

import random

import pytest

from duetime.clock import SECOND
from duetime.model.limit import RateRule
from duetime.model.partitions import LONGEST_NAME, Spent, next_token, partition_of, spend


@pytest.mark.parametrize(
    ("by", "payload", "name"),
    [
        ("user", '{"user": 7}', "7"),
        ("user", '{"user": "7"}', "7"),
        ("user", '{"user": null}', ""),
        ("user", '{"other": 1}', ""),
        ("user", "[1]", ""),
        ("user.id", '{"user": {"id": true}}', "true"),
        ("user.id", '{"user": 7}', ""),
        ("user", '{"user": {"id": 7}}', '{"id":7}'),
        ("user", '{"user": "a\\u0000b"}', "a\ufffdb"),
        ("collection", "{}", "eu"),
        ("meta.tenant", "{}", "gold"),
        ("meta.other", "{}", ""),
    ],
)
def test_a_value_of_the_key_names_a_partition(by: str, payload: str, name: str) -> None:
    assert partition_of(by, payload, "eu", {"tenant": "gold"}) == name


def test_long_values_are_cut_and_told_apart() -> None:
    first, second = (partition_of("user", f'{{"user": "{"ä" * 5_000}{end}"}}', None, {}) for end in "ab")
    assert len(first) == LONGEST_NAME
    assert first != second


@pytest.mark.parametrize("seed", range(20))
def test_in_every_time_no_more_start_than_the_rates_allow(seed: int) -> None:
    chance = random.Random(seed)
    rules = [RateRule(10, SECOND, chance.randint(1, 5)), RateRule(100, 20 * SECOND, 20)]
    spent, now, starts = [Spent(), Spent()], 1_000_000_000 * SECOND, list[int]()
    for _ in range(2_000):
        now += chance.choice((0, 0, SECOND // 100, SECOND // 10, 3 * SECOND) if chance.random() < 0.05 else (0, SECOND // 100))
        if next_token(rules, spent, now) <= now:
            spent = spend(rules, spent, now)
            starts.append(now)
    assert len(starts) > 50
    for rule in rules:
        for index, at in enumerate(starts):
            for other in range(index, min(len(starts), index + 60)):
                assert other - index + 1 <= rule.count * (starts[other] - at) / rule.period + rule.burst
