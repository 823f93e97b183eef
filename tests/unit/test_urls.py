"""Which URLs HTTP handlers may have: what two parsers could read differently is refused."""

import pytest

from duetime import InvalidValue
from duetime.model.urls import Destination, read_url


@pytest.mark.parametrize(
    ("url", "destination"),
    [
        ("https://example.com/hook", ("https", "example.com", 443)),
        ("http://example.com", ("http", "example.com", 80)),
        ("HTTPS://Example.COM:8443/x?a=b#c", ("https", "example.com", 8443)),
        ("http://example.com./", ("http", "example.com", 80)),
        ("http://my_service:8080/", ("http", "my_service", 8080)),
        ("http://localhost/", ("http", "localhost", 80)),
        ("http://192.0.2.1:81/", ("http", "192.0.2.1", 81)),
        ("http://[2001:DB8:0::1]:81/", ("http", "2001:db8::1", 81)),
        ("https://xn--bcher-kva.example/", ("https", "xn--bcher-kva.example", 443)),
        ("https://example.com?to=http://a@b", ("https", "example.com", 443)),
        ("https://1.example.com/", ("https", "1.example.com", 443)),
    ],
)
def test_an_ordinary_url_is_read(url: str, destination: tuple[str, str, int]) -> None:
    assert read_url(url) == Destination(*destination)


REFUSED = [
    ("", "must be text"),
    ("example.com", "must begin with http:// or https://"),
    ("//example.com", "must begin with http:// or https://"),
    ("file:///etc/passwd", "must begin with http:// or https://"),
    ("gopher://example.com", "must begin with http:// or https://"),
    ("ftp://example.com", "must begin with http:// or https://"),
    ("unix:///var/run/docker.sock", "must begin with http:// or https://"),
    ("javascript:alert(1)", "must begin with http:// or https://"),
    ("http:example.com", "two slashes"),
    ("http:/example.com", "two slashes"),
    ("http://", "no host"),
    ("http:///path", "no host"),
    ("http://:80/", "no host"),
    ("http://user@example.com/", "a user or a password"),
    ("http://user:hush@example.com/", "a user or a password"),
    ("http://example.com@127.0.0.1/", "a user or a password"),
    ("http://example.com:80@127.0.0.1/", "a user or a password"),
    ("http://a@b@c/", "a user or a password"),
    ("http://@example.com/", "a user or a password"),
    ("http://127.1/", "unusual form"),
    ("http://127.0.1/", "unusual form"),
    ("http://2130706433/", "unusual form"),
    ("http://0x7f000001/", "unusual form"),
    ("http://0x7f.1/", "unusual form"),
    ("http://0x7f.0x0.0x0.0x1/", "unusual form"),
    ("http://0177.0.0.1/", "unusual form"),
    ("http://017700000001/", "unusual form"),
    ("http://127.0.0.0x1/", "unusual form"),
    ("http://127.0.0.1./", "unusual form"),
    ("http://0/", "unusual form"),
    ("http://127.0.0.256/", "unusual form"),
    ("http://1.2.3.4.5/", "unusual form"),
    ("http://example..com/", "empty label"),
    ("http://.example.com/", "empty label"),
    ("http://example.com../", "empty label"),
    ("http://./", "empty label"),
    ("http://[fe80::1%25eth0]/", "contains %"),
    ("http://[fe80::1%eth0]/", "contains %"),
    ("http://127.0.0.1%2f@example.com/", "a user or a password"),
    ("http://%6c%6f%63alhost/", "contains %"),
    ("http://\uff11\uff12\uff17.\uff10.\uff10.\uff11/", "xn--"),
    ("http://ⓛocalhost/", "xn--"),
    ("http://127。0。0。1/", "xn--"),
    ("http://bücher.example/", "xn--"),
    ("http://[127.0.0.1]/", "not an IPv6 address"),
    ("http://[v1.fe80]/", "not an IPv6 address"),
    ("http://[]/", "not an IPv6 address"),
    ("http://[::1/", "not a host with an optional port"),
    ("http://::1/", "no host"),
    ("http://a:b:80/", "its port must be a number"),
    ("http://[::1]80/", "not a host with an optional port"),
    ("http://example.com:0/", "its port must be a number from 1 to 65535, got '0'"),
    ("http://example.com:65536/", "its port must be a number"),
    ("http://example.com:-1/", "its port must be a number"),
    ("http://example.com:\uff18\uff10/", "its port must be a number"),
    ("http://example.com\\@127.0.0.1/", "backslash"),
    ("http:\\\\127.0.0.1/", "backslash"),
    ("http://exa\tmple.com/", "control character"),
    ("http://exam\nple.com/", "control character"),
    (" http://example.com/", "control character"),
    ("http://example.com/\x00", "control character"),
    ("http://example.com/a b", "space"),
    ("http://-example.com/", "not a host name"),
    ("http://exa$mple.com/", "not a host name"),
    (f"http://{'a' * 64}.example/", "not a host name"),
    (f"http://{'a.' * 127}example/", "not a host name"),
    (f"http://example.com/{'a' * 9_000}", "8,192 are allowed"),
]


@pytest.mark.parametrize(("url", "reason"), REFUSED, ids=[url[:40] for url, _ in REFUSED])
def test_what_could_be_read_in_two_ways_is_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        read_url(url, "target")
    assert reason in str(refused.value)
    assert str(refused.value).startswith("target ")
    assert "hush" not in str(refused.value)


def test_what_is_not_text_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"url must be text such as .*, got 7"):
        read_url(7)  # type: ignore[arg-type]
