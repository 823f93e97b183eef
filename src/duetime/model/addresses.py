"""Which addresses HTTP handlers may connect to.

A URL that came over the API, or a name whose owner chooses where it leads, must not reach what only this machine can reach: loopback,
the private network, the addresses where clouds hand out credentials. `AddressRules.judge` is asked about the very address of each
connection, as the socket gets it (`targets/http/guard.py`): a name says nothing, because it may lead elsewhere a second later.

Everything that is not public is refused. An IPv6 address that carries an IPv4 address is judged by that one too. The table is our
own: `ipaddress.is_global` calls 64:ff9b::7f00:1, 2002:7f00:1::, fec0::1 and multicast global, and differs between versions of Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple, TypeAlias

import msgspec

from duetime.errors import InvalidValue
from duetime.model.urls import Endpoint, host_problem, is_numeric, port_problem

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

ALLOW, DENY = "DUETIME_HTTP_ALLOW", "DUETIME_HTTP_DENY"

_KINDS: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(network), kind)
    for network, kind in (
        ("0.0.0.0/32", "the unspecified address, which leads to this machine"),
        ("0.0.0.0/8", 'an address of "this network"'),
        ("10.0.0.0/8", "a private address"),
        ("100.64.0.0/10", "a shared address of a provider's network (CGNAT)"),
        ("127.0.0.0/8", "a loopback address"),
        ("169.254.0.0/16", "a link-local address"),
        ("172.16.0.0/12", "a private address"),
        ("192.0.0.0/24", "reserved for protocols"),
        ("192.0.2.0/24", "a documentation address"),
        ("192.88.99.0/24", "the former relay of 6to4"),
        ("192.168.0.0/16", "a private address"),
        ("198.18.0.0/15", "a benchmarking address"),
        ("198.51.100.0/24", "a documentation address"),
        ("203.0.113.0/24", "a documentation address"),
        ("224.0.0.0/4", "a multicast address"),
        ("255.255.255.255/32", "the broadcast address"),
        ("240.0.0.0/4", "a reserved address"),
        ("::/128", "the unspecified address, which leads to this machine"),
        ("::1/128", "a loopback address"),
        ("64:ff9b:1::/48", "a local NAT64 address"),
        ("100::/64", "a discard address"),
        ("2001::/32", "a Teredo address"),
        ("2001:2::/48", "a benchmarking address"),
        ("2001::/23", "reserved for protocols"),
        ("2001:db8::/32", "a documentation address"),
        ("3fff::/20", "a documentation address"),
        ("fc00::/7", "a private address"),
        ("fe80::/10", "a link-local address"),
        ("fec0::/10", "a site-local address"),
        ("ff00::/8", "a multicast address"),
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")  # all that has ever been given to networks
_CARRIERS = (IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96"))  # nothing but another way to write an IPv4 address

# Where clouds give whoever asks the credentials of the machine. A network that contains one does not allow it.
METADATA: frozenset[Address] = frozenset(
    ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, Azure, Google, Oracle, DigitalOcean, OpenStack
        "169.254.170.2",  # AWS ECS
        "169.254.170.23",  # AWS EKS
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure
        "192.0.0.192",  # Oracle, formerly
        "fd00:ec2::254",  # AWS
        "fd00:ec2::23",  # AWS EKS
        "fd20:ce::254",  # Google
    )
)

# Services that do not speak HTTP, but may act upon lines that look like their own protocol.
# fmt: off
FOREIGN_PORTS = frozenset((
    1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104, 109, 110, 111, 113,
    115, 117, 119, 123, 135, 137, 138, 139, 143, 161, 162, 179, 389, 427, 445, 465, 512, 513, 514, 515, 526, 530, 531, 532, 540,
    548, 554, 556, 563, 587, 601, 636, 873, 989, 990, 993, 995, 1433, 1521, 1719, 1720, 1723, 1883, 2049, 2181, 3306, 3389, 3659,
    4045, 4190, 4222, 5060, 5061, 5222, 5432, 5433, 5671, 5672, 5900, 6000, 6379, 6380, 6432, 6566, 6665, 6666, 6667, 6668, 6669,
    6697, 8883, 9042, 9092, 10080, 11211, 27017,
))
# fmt: on


class Judgement(NamedTuple):
    """Whether a connection is allowed, and why, in words for people."""

    allowed: bool
    why: str


class AddressList(msgspec.Struct, frozen=True):
    """Networks, addresses, and hosts with a port: what DUETIME_HTTP_ALLOW or DUETIME_HTTP_DENY names."""

    networks: tuple[Network, ...] = ()
    addresses: frozenset[Address] = frozenset()
    endpoints: frozenset[Endpoint] = frozenset()

    def names(self, address: Address, port: int) -> bool:
        """Return whether exactly this address is listed, with this port or with any."""
        return address in self.addresses or Endpoint(str(address), port) in self.endpoints

    def covers(self, address: Address, port: int) -> bool:
        """Return whether the address is listed, or is in a listed network."""
        return self.names(address, port) or any(address in network for network in self.networks)


def read_address_list(value: Any, name: str) -> AddressList:
    """Read text such as `10.20.0.0/16 10.0.0.7 [::1]:8080 intranet.example:8443`, or several of them."""
    texts = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidValue(f"{name} must be text such as 10.20.0.0/16 or intranet.example:8443, or a list of such, got {value!r}")
    networks, addresses, endpoints = [], set(), set()
    for entry in (entry for text in texts for entry in re.split(r"[\s,]+", text) if entry):
        match _read_entry(entry, name):
            case IPv4Network() | IPv6Network() as network if network.num_addresses > 1:
                networks.append(network)
            case IPv4Network() | IPv6Network() as network:
                addresses.add(_unmapped(network.network_address))
            case Endpoint() as endpoint:
                endpoints.add(endpoint)
    return AddressList(tuple(networks), frozenset(addresses), frozenset(endpoints))


def _read_entry(entry: str, name: str) -> Network | Endpoint:
    expected = "expected a network (10.20.0.0/16), an address (10.0.0.7) or a host with a port (intranet.example:8443)"
    if "%" in entry:
        raise InvalidValue(f"{name}: {entry!r} contains a zone (%); {expected}")
    try:
        return ip_network(entry)
    except ValueError:
        pass
    if "/" in entry:
        try:
            meant = f"; for the network write {ip_network(entry, strict=False)}"
        except ValueError:
            meant = ""
        raise InvalidValue(f"{name}: {entry!r} is not a network{meant or f'; {expected}'}")
    host, colon, port = entry.rpartition(":")
    if not colon or not host:
        wrong = host_problem(entry)
        raise InvalidValue(f"{name}: {entry!r}: " + (f"a host name needs a port: {entry}:443" if wrong is None else f"{wrong}; {expected}"))
    problem = host_problem(host) or port_problem(port)
    if problem is not None:
        raise InvalidValue(f"{name}: {entry!r}: {problem}; {expected}")
    return endpoint_of(host, int(port))


@lru_cache(maxsize=1_024)
def endpoint_of(host: str, port: int) -> Endpoint:
    """Return host and port in the one form in which they are compared."""
    bare = host.removeprefix("[").removesuffix("]")
    if is_numeric(bare):
        return Endpoint(str(_unmapped(ip_address(bare))), port)
    return Endpoint(bare.lower().removesuffix("."), port)


class AddressRules(msgspec.Struct, frozen=True, kw_only=True):
    """Where connections may go. `loopback` is the switch of `duetime dev`; `own` is where servers of this process listen."""

    allow: AddressList = AddressList()
    deny: AddressList = AddressList()
    loopback: bool = False
    own: frozenset[Endpoint] = frozenset()

    def judge(
        self, address: str | Address, port: int, *, host: str = "", trusted: bool = False, local: bool = False, http: bool = True
    ) -> Judgement:
        """Judge a connection to an address and a port.

        `host` is what the URL says. `trusted`: host and port are written in the program's own code. `local`: the address is one of
        this machine's. `http`: HTTP will be spoken there, and so the port matters. What is denied comes first, then addresses of
        metadata, then what is allowed, then everything else.
        """
        there = _plain(address)
        inside = tuple(_embedded(there))
        asked = endpoint_of(host, port) if host else None
        for each in (*inside, *_perhaps_embedded(there), there):
            if self.deny.covers(each, port):
                return _refused(there, each, port, f"it is denied by {DENY}")
            exact = self.allow.names(each, port) or (trusted and asked == Endpoint(str(each), port))
            if each in METADATA and not exact:
                why = f"machines get their credentials there; if it is meant, name exactly {each} in {ALLOW}"
                return _refused(there, each, port, why)
        if asked is not None and asked in self.deny.endpoints:
            return _refused(there, there, port, f"{asked} is denied by {DENY}")
        if trusted:
            return Judgement(True, "host and port are written in the program's code")
        if asked is not None and asked in self.allow.endpoints:
            return Judgement(True, f"{asked} is allowed by {ALLOW}")
        return self._judge_parts(there, inside, port, local, http)

    def _judge_parts(self, there: Address, inside: tuple[Address, ...], port: int, local: bool, http: bool) -> Judgement:
        parts = (*inside, there)
        why = "it is a public address"
        if not any(Endpoint(str(each), port) in self.allow.endpoints for each in parts):
            if any(self._is_own(each, port, local) for each in parts):
                return _refused(there, parts[0], port, f"a server of this very process listens there; {_remedy(parts[0], port)}")
            by_port = self.judge_port(port)
            if http and not by_port.allowed:
                return _refused(there, there, port, by_port.why)
        for each in parts:
            kind = _kind_of(each)
            if kind is None:
                continue
            if self.loopback and each.is_loopback:
                why = "loopback is allowed here (duetime dev)"
            elif self.allow.covers(each, port):
                why = f"it is allowed by {ALLOW}"
            else:
                return _refused(there, each, port, f"it is {kind}; {_remedy(each)}")
        return Judgement(True, why)

    def judge_port(self, port: int, *, host: str = "", trusted: bool = False) -> Judgement:
        """Judge a port alone; it can be done before a name is looked up."""
        allowed = trusted or (host and endpoint_of(host, port) in self.allow.endpoints)
        if port in FOREIGN_PORTS and not allowed:
            why = f"port {port} belongs to a service that does not speak HTTP; if it is meant, name host:{port} in {ALLOW}"
            return Judgement(False, why)
        return Judgement(True, "HTTP may be spoken there")

    def listens_everywhere(self, port: int) -> bool:
        """Return whether a server of this process listens to this port on all addresses of the machine."""
        return any(Endpoint(everywhere, port) in self.own for everywhere in ("0.0.0.0", "::"))

    def _is_own(self, address: Address, port: int, local: bool) -> bool:
        mine = local or address.is_loopback or address.is_unspecified
        return Endpoint(str(address), port) in self.own or (mine and self.listens_everywhere(port))


def _refused(there: Address, each: Address, port: int, why: str) -> Judgement:
    leads = "" if there == each else f", which leads to {each},"
    return Judgement(False, f"{there}{leads} port {port}: {why}")


def _remedy(address: Address, port: int | None = None) -> str:
    text = str(address) if port is None else str(Endpoint(str(address), port))
    return f"if it is meant, name {text} in {ALLOW}"


def _kind_of(address: Address) -> str | None:
    """Return what an address is unless it is public."""
    if any(address in carrier for carrier in _CARRIERS):
        return None  # the address inside is judged
    for network, kind in _KINDS:
        if address in network:
            return kind
    return None if address.version == 4 or address in _GLOBAL_UNICAST else "an address that belongs to no public network"


def _plain(address: str | Address) -> Address:
    """Return an address without the scope that sockets may add (fe80::1%eth0), which would hide that it is in a network."""
    read = ip_address(address.partition("%")[0] if isinstance(address, str) else address)
    return read if read.version == 4 else IPv6Address(int(read))


def _unmapped(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _embedded(address: Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses to which packets for an IPv6 address are translated or tunnelled."""
    if isinstance(address, IPv4Address):
        return
    number = int(address)
    high, low = number >> 32, number & 0xFFFF_FFFF
    # mapped; translated (SIIT, ::ffff:0:a.b.c.d); NAT64; "compatible", ::a.b.c.d
    if high in (0xFFFF, 0xFFFF_0000, 0x64_FF9B << 64) or (high == 0 and low > 1):
        yield IPv4Address(low)
    elif number >> 112 == 0x2002:  # 6to4
        yield IPv4Address(number >> 80 & 0xFFFF_FFFF)
    elif number >> 96 == 0x2001_0000:  # Teredo: the client, inverted, and its server
        yield IPv4Address(low ^ 0xFFFF_FFFF)
        yield IPv4Address(number >> 64 & 0xFFFF_FFFF)
    if high & 0xFDFF_FFFF == 0x5EFE:  # ISATAP, below any prefix
        yield IPv4Address(low)


def _perhaps_embedded(address: Address) -> Iterator[IPv4Address]:
    """Yield what an address of a local NAT64 may lead to: how long its prefix is, only that network knows (RFC 8215, RFC 6052)."""
    number = int(address)
    if isinstance(address, IPv6Address) and number >> 80 == 0x64_FF9B_0001:
        yield IPv4Address((number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF)
        yield IPv4Address((number >> 64 & 0xFF) << 24 | number >> 32 & 0xFF_FFFF)
        yield IPv4Address(number >> 24 & 0xFFFF_FFFF)
        yield IPv4Address(number & 0xFFFF_FFFF)
