"""Words: what somebody typed, how texts are split, and the passage that shows a hit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.errors import InvalidValue
from duetime.model.text_search import MOST_POSITIONS, Term, passage, positions, read_terms, split


@pytest.mark.parametrize(
    ("typed", "terms"),
    [
        ("stock", ["stock"]),
        ("Stock  SERVICE", ["stock", "service"]),
        ('"stock service" down', ["stock service", "down"]),
        ("time*", ["time*"]),
        ('"stock serv"*', ["stock serv*"]),
        ("order_7 a-b x.y.z", ["order 7", "a b", "x y z"]),
        ("-not AND (or) text:a ^b", ["not", "and", "or", "text a", "b"]),
        ('an "unfinished phrase', ["an", "unfinished", "phrase"]),
        ("stock stock", ["stock"]),
        ("Straße Größe", ["straße", "große"]),
        ("a\0b", ["a", "b"]),
    ],
)
def test_what_somebody_typed_is_read_as_terms(typed: str, terms: list[str]) -> None:
    assert [str(term) for term in read_terms(typed)] == terms


@pytest.mark.parametrize("typed", ["", "*", '"" ()', "\0", "…"])
def test_without_a_word_there_is_nothing_to_search_for(typed: str) -> None:
    with pytest.raises(InvalidValue, match="there is no word to search for"):
        read_terms(typed)


@given(st.text(max_size=100))
def test_anything_typed_gives_words_of_letters_and_digits_or_is_refused(typed: str) -> None:
    try:
        terms = read_terms(typed)
    except InvalidValue:
        return
    assert all(word.isalnum() for term in terms for word in term.words)


def test_positions_are_counted_in_words() -> None:
    assert positions("a b, A!") == {"a": [1, 3], "b": [2]}
    assert positions("x " * 20_000 + "end")["end"] == [MOST_POSITIONS]


def test_a_passage_shows_what_was_found_on_one_line() -> None:
    assert passage("one\ntwo   three", read_terms("two")) == "one two three"
    assert passage("nothing of it", [Term(("absent",))]) == "nothing of it"
    long = passage("left " * 50 + "Größe 7" + " right" * 50, read_terms('"grosse 8" "GRÖSSE" große'))
    assert long.startswith("… left")
    assert "left Größe 7 right" in long
    assert long.endswith("right …")


@given(st.text(max_size=300), st.text(alphabet="abcé ", min_size=1, max_size=5))
def test_a_passage_can_be_made_of_any_text(text: str, typed: str) -> None:
    words = split(typed)
    assert "\n" not in passage(text, [Term(tuple(words))] if words else [])
