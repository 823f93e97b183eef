"""The scripts of the store on Valkey or Redis."""

from __future__ import annotations

import re
from importlib.resources import files

from duetime.store.redis import scripts
from duetime.store.redis.keys import Keys


def texts() -> dict[str, str]:
    folder = files("duetime.store.redis").joinpath("lua")
    return {file.name.removesuffix(".lua"): file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".lua")}


def test_every_script_is_used_and_says_what_it_is_for() -> None:
    used = {each.name for each in vars(scripts).values() if isinstance(each, scripts.Script)}
    assert used == texts().keys() - {"common"}
    assert all(text.startswith("-- ") for text in texts().values())


def test_no_script_makes_up_the_name_of_a_key() -> None:
    """What follows the command in a call is a fixed key, or one of KEYS."""
    for name, text in texts().items():
        for key in re.findall(r"redis\.call\('[A-Z]+', ([^,)]+)", text):
            assert re.match(r"[A-Z]+\Z|ENDED\[letter\]\Z|KEYS\[.*|running\Z|key\Z", key), f"{name}: {key}"


def test_all_keys_of_a_store_have_one_hash_tag() -> None:
    keys = Keys("shop")
    own = [*keys.fixed, keys.lane("5work\0"), keys.running("w"), keys.attempts("t"), keys.chunks("t"), keys.output]
    assert all(key.startswith("{shop}:") for key in own)
    assert len(set(own)) == len(own)
