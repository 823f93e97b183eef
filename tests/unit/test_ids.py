"""Task ids: their layout, their order, and that no two are the same."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.ids import SHARDS, is_id, key_shard, new_id, shard_of


def test_an_id_is_a_uuid_of_version_7() -> None:
    before = time.time_ns() // 1_000_000
    ids = [new_id() for _ in range(1_000)]
    after = time.time_ns() // 1_000_000
    for id in ids:
        parsed = uuid.UUID(id)
        assert str(parsed) == id
        assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
        assert before <= parsed.int >> 80 <= after


@given(st.integers(0, SHARDS - 1))
def test_the_shard_stands_in_the_twelve_bits_after_the_version(shard: int) -> None:
    id = new_id(shard)
    assert shard_of(id) == shard
    assert (uuid.UUID(id).int >> 64) & 0xFFF == shard
    assert is_id(id)


def test_ids_without_a_key_are_spread_over_shards() -> None:
    shards = set()
    for _ in range(20):
        shards.add(shard_of(new_id()))
        time.sleep(0.002)
    assert len(shards) > 5
    assert all(0 <= shard < SHARDS for shard in shards)


def test_the_ids_of_one_process_keep_the_order_of_submitting() -> None:
    ids = [new_id() for _ in range(50_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


def test_keyed_ids_stay_unique_between_unkeyed_ones() -> None:
    ids = [new_id(None if number % 3 else number % SHARDS) for number in range(30_000)]
    assert len(set(ids)) == len(ids)


def test_threads_never_make_the_same_id() -> None:
    made: list[list[str]] = [[] for _ in range(8)]

    def make(into: list[str]) -> None:
        into.extend(new_id() for _ in range(5_000))

    threads = [threading.Thread(target=make, args=(into,)) for into in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id for into in made for id in into}) == 40_000
    assert all(into == sorted(into) for into in made)


MANY = "from duetime.ids import new_id\nprint('\\n'.join(new_id() for _ in range(25_000)))"
SEEDED = "import random\nrandom.seed(7)\n" + MANY
FORKED = """
import os
from duetime.ids import new_id
new_id()
children = []
for _ in range(4):
    read, write = os.pipe()
    if os.fork() == 0:
        with os.fdopen(write, "w") as out:
            out.write("\\n".join(new_id() for _ in range(25_000)) + "\\n")
        os._exit(0)
    os.close(write)
    children.append(read)
for read in children:
    with os.fdopen(read) as lines:
        print(lines.read(), end="")
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", [MANY, SEEDED])
def test_four_processes_never_make_the_same_id(program: str) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    ids = [id for process in processes for id in process.communicate()[0].split()]
    assert [process.returncode for process in processes] == [0] * 4
    assert len(ids) == len(set(ids)) == 100_000


def test_forked_children_never_make_the_same_id() -> None:
    result = subprocess.run([sys.executable, "-c", FORKED], stdout=subprocess.PIPE, text=True, check=True)
    ids = result.stdout.split()
    assert len(ids) == len(set(ids)) == 100_000


def test_the_shard_of_a_key_never_changes() -> None:
    """Stores keep what is found by it, so these values are for ever."""
    assert key_shard("expire_order", "order-7") == key_shard("expire_order", "order-7")
    assert [key_shard("a", "b"), key_shard("expire_order", "order-7"), key_shard("日本", "ключ")] == KNOWN_SHARDS
    assert key_shard("ab", "c") != key_shard("a", "bc")


KNOWN_SHARDS = [2161, 1703, 69]


@given(st.text(), st.text())
def test_every_key_has_a_shard(handler: str, key: str) -> None:
    assert 0 <= key_shard(handler, key) < SHARDS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "00000000-0000-0000-0000-000000000000",
        "f02215f3-c6e9-4dfb-b1dc-c40f9cc8731d",  # of version 4
        "0efc051c-e163-11f1-9152-02fc00000001",  # of version 1
        "01a1e114-c422-747f-88ba-d8ab7298e49",
        "01a1e114-c422-747f-88ba-d8ab7298e4911",
        "01a1e114-c422-747f-c8ba-d8ab7298e491",
        "01A1E114-C422-747F-88BA-D8AB7298E491",
        "01a1e114c422747f88bad8ab7298e491",
        "01a1e114-c422-747f-88ba-d8ab7298e491\n",
        " 01a1e114-c422-747f-88ba-d8ab7298e491",
        "{01a1e114-c422-747f-88ba-d8ab7298e491}",
    ],
)
def test_what_is_not_written_like_an_id_is_none(text: str) -> None:
    assert not is_id(text)
    assert is_id("01a1e114-c422-747f-88ba-d8ab7298e491")
