"""Where HTTP handlers may connect to: the judgement of addresses, ports and lists."""

from ipaddress import ip_address

import pytest

from duetime import InvalidValue
from duetime.config import load
from duetime.model.addresses import FOREIGN_PORTS, METADATA, AddressRules, endpoint_of, read_address_list

ANYWHERE = AddressRules()

# every way to write an address that is not public, with a word of the reason
INSIDE = [
    ("127.0.0.1", "loopback"),
    ("127.0.0.2", "loopback"),
    ("127.255.255.254", "loopback"),
    ("::1", "loopback"),
    ("0:0:0:0:0:0:0:1", "loopback"),
    ("::ffff:127.0.0.1", "leads to 127.0.0.1"),
    ("::ffff:7f00:1", "leads to 127.0.0.1"),
    ("::ffff:0:127.0.0.1", "leads to 127.0.0.1"),
    ("::127.0.0.1", "leads to 127.0.0.1"),
    ("64:ff9b::127.0.0.1", "leads to 127.0.0.1"),
    ("64:ff9b::7f00:1", "leads to 127.0.0.1"),
    ("64:ff9b:1::7f00:1", "local NAT64"),
    ("64:ff9b:1:7f00:0:100::", "local NAT64"),
    ("64:ff9b:1::8.8.8.8", "local NAT64"),
    ("2002:7f00:1::", "leads to 127.0.0.1"),
    ("2002:7f00:0001::1", "leads to 127.0.0.1"),
    ("2002:a00:1::1", "leads to 10.0.0.1"),
    ("2002:c0a8:101::", "leads to 192.168.1.1"),
    ("2001:0:808:808:0:0:80ff:fffe", "leads to 127.0.0.1"),  # Teredo: the client, inverted
    ("2001:0:7f00:1::f7f7:f7f7", "leads to 127.0.0.1"),  # Teredo: the server
    ("2001:0:808:808::f7f7:f7f7", "Teredo"),
    ("2620:0:1::5efe:10.0.0.1", "leads to 10.0.0.1"),  # ISATAP
    ("2620:0:1::200:5efe:10.0.0.1", "leads to 10.0.0.1"),
    ("fe80::5efe:8.8.8.8", "link-local"),
    ("0.0.0.0", "unspecified"),
    ("0.0.0.1", "this network"),
    ("0.255.1.2", "this network"),
    ("::", "unspecified"),
    ("::ffff:0.0.0.0", "leads to 0.0.0.0"),
    ("10.0.0.1", "private"),
    ("10.255.255.255", "private"),
    ("172.16.0.1", "private"),
    ("172.31.255.255", "private"),
    ("192.168.0.1", "private"),
    ("::ffff:192.168.0.1", "private"),
    ("64:ff9b::10.0.0.1", "private"),
    ("fc00::1", "private"),
    ("fd12:3456:789a::1", "private"),
    ("100.64.0.1", "CGNAT"),
    ("100.127.255.255", "CGNAT"),
    ("169.254.0.1", "link-local"),
    ("fe80::1", "link-local"),
    ("fe80::1%eth0", "link-local"),
    ("fec0::1", "site-local"),
    ("224.0.0.1", "multicast"),
    ("239.255.255.250", "multicast"),
    ("ff02::1", "multicast"),
    ("ff0e::1", "multicast"),
    ("240.0.0.1", "reserved"),
    ("255.255.255.255", "broadcast"),
    ("192.0.0.1", "reserved for protocols"),
    ("192.0.2.1", "documentation"),
    ("198.51.100.1", "documentation"),
    ("203.0.113.1", "documentation"),
    ("2001:db8::1", "documentation"),
    ("3fff::1", "documentation"),
    ("198.18.0.1", "benchmarking"),
    ("198.19.255.255", "benchmarking"),
    ("2001:2::1", "benchmarking"),
    ("192.88.99.1", "6to4"),
    ("100::1", "discard"),
    ("2001:10::1", "reserved for protocols"),
    ("5f00::1", "no public network"),
    ("4000::1", "no public network"),
    ("::5", "leads to 0.0.0.5"),
    ("169.254.169.254", "credentials"),
    ("::ffff:169.254.169.254", "credentials"),
    ("64:ff9b::a9fe:a9fe", "credentials"),
    ("64:ff9b:1:a9fe:a9:fe00::", "credentials"),
    ("64:ff9b:1::a9fe:a9fe", "credentials"),
    ("2002:a9fe:a9fe::", "credentials"),
    ("169.254.170.2", "credentials"),
    ("169.254.170.23", "credentials"),
    ("fd00:ec2::254", "credentials"),
    ("100.100.100.200", "credentials"),
    ("168.63.129.16", "credentials"),
]

PUBLIC = [
    "8.8.8.8",
    "1.1.1.1",
    "93.184.216.34",
    "172.15.255.255",
    "172.32.0.1",
    "100.63.255.255",
    "100.128.0.1",
    "126.255.255.255",
    "128.0.0.1",
    "169.253.255.255",
    "192.167.255.255",
    "198.17.255.255",
    "198.20.0.1",
    "223.255.255.255",
    "2606:4700:4700::1111",
    "2a00:1450:4001:80e::200e",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",  # how a network that has IPv6 only reaches the rest
    "2002:808:808::1",
]


def test_the_table_has_at_least_sixty_forms() -> None:
    assert len({address for address, _ in INSIDE}) == len(INSIDE) >= 60


@pytest.mark.parametrize(("address", "reason"), INSIDE)
def test_an_address_that_is_not_public_is_refused_with_the_reason(address: str, reason: str) -> None:
    judgement = ANYWHERE.judge(address, 443)
    assert not judgement.allowed
    assert reason in judgement.why
    assert judgement.why.startswith(str(ip_address(address.partition("%")[0])))


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address: str) -> None:
    assert ANYWHERE.judge(address, 443) == (True, "it is a public address")


def test_a_refusal_says_what_to_do() -> None:
    assert (
        ANYWHERE.judge("10.0.0.7", 80).why
        == "10.0.0.7 port 80: it is a private address; if it is meant, name 10.0.0.7 in DUETIME_HTTP_ALLOW"
    )
    assert ANYWHERE.judge("::ffff:10.0.0.7", 80).why.startswith("::ffff:a00:7, which leads to 10.0.0.7, port 80: it is a private address;")


# ---- lists ----


@pytest.mark.parametrize(
    ("allow", "address", "port", "allowed"),
    [
        ("10.20.0.0/16", "10.20.3.4", 443, True),
        ("10.20.0.0/16", "::ffff:10.20.3.4", 443, True),
        ("10.20.0.0/16", "64:ff9b::10.20.3.4", 443, True),
        ("10.20.0.0/16", "fe80::5efe:10.20.3.4", 443, False),  # what carries it is not allowed
        ("10.20.0.0/16", "10.21.3.4", 443, False),
        ("10.0.0.7", "10.0.0.7", 8080, True),
        ("10.0.0.7", "10.0.0.8", 8080, False),
        ("10.0.0.7/32", "10.0.0.7", 8080, True),
        ("::ffff:10.0.0.7", "10.0.0.7", 8080, True),
        ("10.0.0.7:8080", "10.0.0.7", 8080, True),
        ("10.0.0.7:8080", "10.0.0.7", 8081, False),
        ("[fd12::7]:8080, 10.0.0.7", "fd12::7", 8080, True),
        ("[fd12::7]:8080", "fd12::7", 80, False),
        ("64:ff9b:1::/48", "64:ff9b:1::10.0.0.7", 443, True),
        ("0.0.0.0/0 ::/0", "127.0.0.1", 443, True),
    ],
)
def test_what_is_listed_is_allowed(allow: str, address: str, port: int, allowed: bool) -> None:
    assert AddressRules(allow=read_address_list(allow, "allow")).judge(address, port).allowed is allowed


def test_a_host_with_its_port_is_allowed_wherever_it_leads() -> None:
    rules = AddressRules(allow=read_address_list("Intranet.Example.:8443", "allow"))
    assert rules.judge("10.0.0.7", 8443, host="intranet.example").allowed
    assert rules.judge("10.0.0.7", 8443, host="INTRANET.example.").allowed
    assert not rules.judge("10.0.0.7", 8443, host="other.example").allowed
    assert not rules.judge("10.0.0.7", 443, host="intranet.example").allowed
    assert not rules.judge("10.0.0.7", 8443).allowed


@pytest.mark.parametrize("deny", ["8.8.8.0/24", "8.8.8.8", "8.8.8.8:443", "dns.example:443"])
def test_what_is_denied_is_refused_whatever_else_allows_it(deny: str) -> None:
    rules = AddressRules(allow=read_address_list("8.8.8.8 dns.example:443", "allow"), deny=read_address_list(deny, "deny"))
    for address in ("8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::808:808"):
        judgement = rules.judge(address, 443, host="dns.example", trusted=True)
        assert not judgement.allowed
        assert "DUETIME_HTTP_DENY" in judgement.why
    assert rules.judge("8.8.4.4", 443).allowed


@pytest.mark.parametrize("address", sorted(map(str, METADATA)))
def test_a_metadata_address_is_allowed_only_by_its_exact_name(address: str) -> None:
    widest = AddressRules(allow=read_address_list("0.0.0.0/0 ::/0 metadata.example:80", "allow"))
    assert not widest.judge(address, 80).allowed
    assert not widest.judge(address, 80, host="metadata.example").allowed
    assert not widest.judge(address, 80, host="metadata.example", trusted=True).allowed  # a name in code says nothing of its address
    assert AddressRules(allow=read_address_list(address, "allow")).judge(address, 80).allowed
    assert AddressRules(allow=read_address_list(str(endpoint_of(address, 80)), "allow")).judge(address, 80).allowed
    assert widest.judge(address, 80, host=address, trusted=True).allowed  # the address itself is in the code
    others = " ".join(str(each) for each in METADATA if str(each) != address)
    assert not AddressRules(allow=read_address_list(others, "allow")).judge(address, 80).allowed


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("10.0.0.1/8", "setting: '10.0.0.1/8' is not a network; for the network write 10.0.0.0/8"),
        ("10.0.0.0/33", "'10.0.0.0/33' is not a network; expected a network"),
        ("intranet.example", "'intranet.example': a host name needs a port: intranet.example:443"),
        ("127.1", "an IPv4 address in an unusual form"),
        ("0x7f.1:80", "an IPv4 address in an unusual form"),
        ("host:0", "its port must be a number from 1 to 65535, got '0'"),
        ("host:http", "its port must be a number from 1 to 65535, got 'http'"),
        ("https://intranet.example:443", "is not a"),
        ("a..b:80", "empty label"),
        ("*.example:80", "is not a host name"),
        ("fe80::1%eth0", "%"),
        (":80", "expected a network"),
        (7, "must be text such as 10.20.0.0/16"),
        ([b"10.0.0.0/8"], "must be text such as 10.20.0.0/16"),
    ],
)
def test_a_malformed_entry_is_refused_with_what_was_expected(value: object, message: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        read_address_list(value, "setting")
    assert message in str(refused.value)
    assert str(refused.value).startswith("setting")


def test_the_settings_make_the_rules() -> None:
    config = load({}, {"DUETIME_HTTP_ALLOW": "10.20.0.0/16 intranet.example:8443", "DUETIME_HTTP_DENY": "10.20.0.1"})
    rules = config.addresses()
    assert rules.judge("10.20.0.2", 443).allowed
    assert not rules.judge("10.20.0.1", 443).allowed
    assert load({"http_allow": ["10.20.0.0/16", "intranet.example:8443"]}, {}).http_allow == config.http_allow
    assert load({}, {}).addresses() == AddressRules()


# ---- trust, ports, own servers ----


def test_a_host_in_the_programs_code_is_trusted_unless_it_is_denied() -> None:
    assert not ANYWHERE.judge("127.0.0.1", 6379, host="sidecar").allowed
    assert ANYWHERE.judge("127.0.0.1", 6379, host="sidecar", trusted=True).allowed
    denied = AddressRules(deny=read_address_list("127.0.0.0/8", "deny"))
    assert not denied.judge("127.0.0.1", 6379, host="sidecar", trusted=True).allowed


@pytest.mark.parametrize("port", [22, 25, 53, 3306, 5432, 6379, 9092, 11211, 27017])
def test_ports_of_other_protocols_are_refused_unless_they_are_named(port: int) -> None:
    assert port in FOREIGN_PORTS
    refused = ANYWHERE.judge("8.8.8.8", port)
    assert not refused.allowed
    assert f"port {port} belongs to a service that does not speak HTTP" in refused.why
    assert not AddressRules(allow=read_address_list("8.8.8.0/24 8.8.8.8", "allow")).judge("8.8.8.8", port).allowed
    assert AddressRules(allow=read_address_list(f"8.8.8.8:{port}", "allow")).judge("8.8.8.8", port).allowed
    named = AddressRules(allow=read_address_list(f"shop.example:{port}", "allow"))
    assert named.judge("8.8.8.8", port, host="shop.example").allowed
    assert (named.judge_port(port, host="shop.example").allowed, named.judge_port(port, host="other.example").allowed) == (True, False)
    assert (ANYWHERE.judge_port(port).allowed, ANYWHERE.judge_port(port, trusted=True).allowed) == (False, True)


@pytest.mark.parametrize("port", [80, 443, 3000, 5000, 8000, 8080, 8420, 8443, 9000])
def test_usual_ports_of_http_are_allowed(port: int) -> None:
    assert ANYWHERE.judge("8.8.8.8", port).allowed


def test_the_switch_of_dev_allows_loopback_and_nothing_else() -> None:
    rules = AddressRules(loopback=True)
    assert rules.judge("127.0.0.1", 9000) == (True, "loopback is allowed here (duetime dev)")
    assert rules.judge("::1", 9000).allowed
    assert rules.judge("::ffff:127.0.0.1", 9000).allowed
    for address in ("0.0.0.0", "10.0.0.1", "169.254.169.254", "fe80::1"):
        assert not rules.judge(address, 9000).allowed
    assert not rules.judge("127.0.0.1", 6379).allowed


@pytest.mark.parametrize(
    ("listening", "address"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("0.0.0.0", "127.0.0.3"), ("::", "127.0.0.1")]
)
def test_the_programs_own_server_is_refused_unless_it_is_named_with_its_port(listening: str, address: str) -> None:
    config = load({"http_allow": "127.0.0.0/8 ::1"}, {})
    rules = config.addresses(loopback=True, own=[(listening, 8420)])
    refused = rules.judge(address, 8420)
    assert not refused.allowed
    assert "a server of this very process listens there" in refused.why
    assert rules.judge(address, 8421).allowed
    named = load({"http_allow": str(endpoint_of(address, 8420))}, {}).addresses(own=[(listening, 8420)])
    assert named.judge(address, 8420).allowed
    assert rules.judge(address, 8420, host=address, trusted=True).allowed


def test_a_public_address_of_this_machine_is_its_own_where_it_listens_everywhere() -> None:
    rules = load({}, {}).addresses(own=[("0.0.0.0", 8420)])
    assert (rules.listens_everywhere(8420), rules.listens_everywhere(443)) == (True, False)
    assert rules.judge("8.8.8.8", 8420).allowed
    assert not rules.judge("8.8.8.8", 8420, local=True).allowed
