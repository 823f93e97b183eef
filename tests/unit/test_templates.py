"""Templates: references take values, and no value can leave the part that it stands for."""

from __future__ import annotations

import contextlib
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.errors import Fatal, InvalidValue
from duetime.model.task import Extras
from duetime.store.values import ClaimedTask
from duetime.targets.templates import (
    Facts,
    HeaderTemplate,
    JsonTemplate,
    MissingReference,
    TextTemplate,
    UnfitReference,
    UrlTemplate,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def facts(meta: dict[str, str] | None = None, **payload: Any) -> Facts:
    task = ClaimedTask(
        "0198c2f4-5d1e-7a3b-8c21-5f0e9d3a7b46", "charge", "{}", 3, 1, 0, 1_000_000, 1_000_000, 500_000, "ada", None, None, None,
        None if meta is None else Extras(meta=meta), "order-7", None, 5, None, None,
    )  # fmt: skip
    return Facts(task, payload, 2_500_000, iter(["5d1e"]).__next__)


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{payload.amount}", 12),
        ("{payload.order}", {"id": 7, "lines": [{"sku": "a"}, {"sku": "b"}]}),
        ("{payload.order.lines.1.sku}", "b"),
        ("{payload.nothing}", None),
        ("{payload}", {"amount": 12, "order": {"id": 7, "lines": [{"sku": "a"}, {"sku": "b"}]}, "nothing": None, "ok": True}),
        ("€ {payload.amount}, {payload.ok}", "€ 12, true"),
        ({"{meta.tenant}": ["{task.id}", 1.5, None, {"at": "{task.due_at}"}]},
         {"blue": ["0198c2f4-5d1e-7a3b-8c21-5f0e9d3a7b46", 1.5, None, {"at": "1970-01-01T00:00:01.000000Z"}]}),
        ("{task.attempt}", 3),
        ("{now} {uuid} {uuid}", "1970-01-01T00:00:02.500000Z 5d1e 5d1e"),
        ("{{payload.amount}}", "{payload.amount}"),
        ("{{{payload.amount}}}", "{12}"),
    ],
)  # fmt: skip
def test_references_take_values_with_their_type(template: Any, filled: Any) -> None:
    known = facts({"tenant": "blue"}, amount=12, order={"id": 7, "lines": [{"sku": "a"}, {"sku": "b"}]}, nothing=None, ok=True)
    assert JsonTemplate(template, "body").fill(known) == filled


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{payload.amount", "single '{'"),
        ("payload.amount}", "single '}'"),
        ("{}", "begins with payload, meta, task, now, uuid"),
        ("{order.id}", "begins with payload, meta, task, now, uuid"),
        ("{payload.}", "not a path of names"),
        ("{payload.a b}", "not a path of names"),
        ("{payload['a']}", "begins with payload"),
        ("{now.year}", "has no parts"),
        ("{meta}", "meta.tenant"),
        ("{task.secret}", "id, handler, attempt"),
        ("{payload.__class__}", "the payload has only amount"),
        (object(), "must be JSON"),
        ({1: 2}, "the names of an object are text"),
    ],
)
def test_a_template_that_cannot_work_is_refused_where_it_is_declared(template: Any, problem: str) -> None:
    with pytest.raises(InvalidValue, match=problem):
        JsonTemplate(template, "body", names=["amount"])


@pytest.mark.parametrize(
    ("template", "missing"),
    [
        ("{payload.order.id}", "the payload has no order"),
        ("x{payload.known.2}", "the payload has no known.2"),
        ("{payload.known.first}", "the payload has no known.first"),
        ("{meta.tenant}", "meta has no 'tenant'"),
        ("{task.schedule}", "the task has no schedule"),
    ],
)
def test_a_missing_value_is_fatal_and_named(template: str, missing: str) -> None:
    with pytest.raises(MissingReference, match=missing) as raised:
        JsonTemplate({"deep": [template]}, "body").fill(facts(known=[1, 2]))
    assert isinstance(raised.value, Fatal)
    assert template.strip("x") in str(raised.value)


@pytest.mark.parametrize("value", [None, [1], {"a": 1}])
def test_a_value_that_is_no_text_cannot_be_a_part_of_one(value: Any) -> None:
    for template in (JsonTemplate("x{payload.value}", "body"), TextTemplate("{payload.value}", "argument")):
        with pytest.raises(UnfitReference, match="inside a text"):
            template.fill(facts(value=value))


@given(JSON)
def test_a_template_of_any_json_without_references_is_filled_with_itself(value: Any) -> None:
    def escaped(each: Any) -> Any:
        if isinstance(each, str):
            return each.replace("{", "{{").replace("}", "}}")
        if isinstance(each, dict):
            return {escaped(name): escaped(inner) for name, inner in each.items()}
        return [escaped(inner) for inner in each] if isinstance(each, list) else each

    assert JsonTemplate(escaped(value), "body").fill(facts()) == value


@given(TEXTS)
def test_any_text_is_a_template_or_refused_and_nothing_else(text: str) -> None:
    try:
        template = JsonTemplate(text, "body")
    except InvalidValue:
        return
    with contextlib.suppress(Fatal):
        template.fill(facts())


@given(JSON)
def test_a_value_is_never_read_as_a_template(value: Any) -> None:
    assert JsonTemplate({"a": "{payload.value}"}, "body").fill(facts(value=value)) == {"a": value}


@given(TEXTS, TEXTS)
def test_a_value_in_a_url_stays_one_segment_or_one_query_value(segment: str, value: str) -> None:
    template = UrlTemplate("https://shop.example/orders/{payload.segment}/pay?to={payload.value}&fixed=1")
    try:
        url = template.fill(facts(segment=segment, value=value))
    except UnfitReference:
        assert segment in ("", ".", "..")
        return
    split = urlsplit(url)
    assert (split.scheme, split.netloc, split.fragment) == ("https", "shop.example", "")
    assert url.isascii()
    start, orders, found, pay = split.path.split("/")
    assert (start, orders, unquote(found), pay) == ("", "orders", segment, "pay")
    assert parse_qsl(split.query, keep_blank_values=True, strict_parsing=True) == [("to", value), ("fixed", "1")]


@pytest.mark.parametrize("value", ["", ".", ".."])
def test_a_value_that_would_lead_to_another_path_is_refused(value: str) -> None:
    with pytest.raises(UnfitReference):
        UrlTemplate("https://shop.example/orders/{payload.id}").fill(facts(id=value))
    with pytest.raises(UnfitReference):
        UrlTemplate("https://shop.example/orders/.{payload.id}/x").fill(facts(id="." if value else ""))


@given(TEXTS | st.sampled_from(["evil.example", "shop.example@evil.example", "shop.example:22", "shop.example/x", "a.shop.example#"]))
def test_a_reference_in_a_host_leads_to_a_listed_host_only(value: str) -> None:
    template = UrlTemplate("https://{payload.host}/x", hosts=["shop.example", "*.shop.example"])
    try:
        url = template.fill(facts(host=value))
    except UnfitReference:
        return
    host = urlsplit(url).netloc.lower()
    assert host == "shop.example" or (host.endswith(".shop.example") and host.count(".") == 2)


def test_one_label_stands_for_the_star_of_a_listed_host() -> None:
    template = UrlTemplate("https://{meta.tenant}.shop.example/x", hosts=["*.shop.example"])
    assert template.fill(facts({"tenant": "blue"})) == "https://blue.shop.example/x"
    for other in ("a.b", "", "evil.example/", "-a"):
        with pytest.raises(UnfitReference, match="not one of"):
            template.fill(facts({"tenant": other}))


@pytest.mark.parametrize(
    ("url", "options", "problem"),
    [
        ("https://{payload.host}/x", {}, "hosts="),
        ("https://shop.example/x", {"hosts": ["shop.example"]}, "has none there"),
        ("{payload.url}", {}, "must begin with http"),
        ("https://shop.example/x#{payload.a}", {}, "fragment"),
        ("https://shop.example/{payload.a", {}, "single"),
        (7, {}, "must be text"),
    ],
)
def test_a_url_that_cannot_work_is_refused_where_it_is_declared(url: Any, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidValue, match=problem):
        UrlTemplate(url, **options)


@given(st.text(st.characters(), max_size=40))
def test_a_header_is_one_line_whatever_the_value_is(value: str) -> None:
    template = HeaderTemplate("tenant {payload.value}", "the header X-Tenant")
    try:
        header = template.fill(facts(value=value))
    except UnfitReference:
        return
    assert not set(header) & {chr(code) for code in (*range(9), *range(10, 32), 127)}
    header.encode()


@pytest.mark.parametrize("value", ["a\r\nX-Admin: 1", "a\nb", "a\rb", "a\0b", "\x7f", "\ud800"])
def test_line_breaks_and_zeros_in_a_header_are_refused(value: str) -> None:
    with pytest.raises(UnfitReference, match="one line"):
        HeaderTemplate("{payload.value}", "the header X-Tenant").fill(facts(value=value))
    if value != "\ud800":
        with pytest.raises(InvalidValue, match="one line"):
            HeaderTemplate(value, "the header X-Tenant")


def test_a_deep_template_is_refused() -> None:
    value: Any = "x"
    for _ in range(40):
        value = [value]
    with pytest.raises(InvalidValue, match="deeper"):
        JsonTemplate(value, "body")
    assert msgspec.json.encode(JsonTemplate([[1]], "body").fill(facts())) == b"[[1]]"
