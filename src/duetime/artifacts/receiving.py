"""Reading bytes that somebody else has written, and trusting them only once their size and their hash are what was promised."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

PIECE = 1 << 20


class WrongContent(Exception):
    """The bytes are not those that were promised."""


async def receive(pieces: AsyncGenerator[bytes, None], into: Path, *, sha256: str, size: int) -> None:
    """Write bytes into a file while they are hashed. Raises WrongContent at the first byte too many, or for another hash."""
    digest, received = hashlib.sha256(), 0
    async with aclosing(pieces):
        with await asyncio.to_thread(into.open, "wb") as file:
            async for piece in pieces:
                received += len(piece)
                if received > size:
                    raise WrongContent(f"there are more than the announced {size:,} bytes")
                digest.update(piece)  # without the lock of the interpreter, and not long for one piece
                await asyncio.to_thread(file.write, piece)
    if received != size:
        raise WrongContent(f"there are {received:,} bytes instead of {size:,}")
    if digest.hexdigest() != sha256:
        raise WrongContent(f"their SHA-256 is {digest.hexdigest()} instead of {sha256}")


def copy_and_hash(path: Path, into: Path, cap: int) -> tuple[str, int]:
    """Copy a file that may change meanwhile; return the hash and the size of the copy, which is one byte too long if it is over `cap`."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as source, into.open("wb") as target:
        while size <= cap and (piece := source.read(min(PIECE, cap + 1 - size))):
            digest.update(piece)
            target.write(piece)
            size += len(piece)
    return digest.hexdigest(), size
