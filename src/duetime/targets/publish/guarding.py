"""Connections to brokers that somebody has stored: judged by their real address, as those of HTTP handlers are."""

from __future__ import annotations

import asyncio
import socket

from duetime.model.addresses import AddressRules
from duetime.targets.publish.address import Address
from duetime.targets.publish.brokers import OpenLink
from duetime.targets.publish.messages import BrokerUnreachable, Link, PublishRefused


def guarded(open_link: OpenLink, rules: AddressRules) -> OpenLink:
    """Return what connects as `open_link` does, but only to addresses that the rules allow.

    Without TLS the connection is made to the very address that was judged. With TLS it is made by name, because the certificate
    is checked by that; a name that leads elsewhere a moment later leads to a server without such a certificate.
    """

    async def open_judged(address: Address, host: tuple[str, int]) -> Link:
        name, port = host
        try:
            found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise BrokerUnreachable(f"{name}: {error.strerror or error}") from error
        refused = []
        for each in dict.fromkeys(str(info[4][0]) for info in found):
            judgement = rules.judge(each, port, host=name, http=False)
            if not judgement.allowed:
                refused.append(judgement.why)
            elif not address.tls:
                return await open_link(address, (each, port))
        if refused or not found:
            raise PublishRefused("AddressRefused", f"{address.shown} is refused: {'; '.join(refused)}", fatal=True)
        return await open_link(address, host)

    return open_judged
