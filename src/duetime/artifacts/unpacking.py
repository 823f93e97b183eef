"""Unpacking archives that somebody else has made. Whatever is in them, nothing is written outside of the folder.

Tar archives, plain or with gzip, and zip archives are held to the same rules. An archive that breaks one is refused as a whole:

- at most MOST_MEMBERS members and MAX_BYTES bytes, and not more than RATIO times the size of the archive
- relative names without `..`, at most DEPTH folders deep; none twice, and none that differs from another by case alone, because some file
  systems take these for the same file
- files and folders only; in a tar also hard links to files before them, and symbolic links that lead to something inside. `..` stands at
  the beginning of a link's target only: behind a name that is a link itself it would lead somewhere else than it seems to

Owners and modes are not taken over, but for whether a file can be executed. What is unpacked is read-only.

`tarfile`'s own filter `data` refuses less, depends on the version of Python, and had a way out in some of them (CVE-2025-4517). A test
holds that whatever it refuses is refused here.
"""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from duetime.model.artifacts import ArtifactKind

MOST_MEMBERS = 10_000
MAX_BYTES = 1_000_000_000
RATIO = 100
FREE_OF_RATIO = 10_000_000  # bytes that any archive may unpack to, however small it is: texts that repeat themselves shrink well
DEPTH = 40
MAX_PATH = 1_000  # bytes
MAX_HEADER = 1 << 20  # bytes of one header of a tar: it is read into memory as a whole
MOST_HEADER_READS = 100  # for one member of a tar: `tarfile` calls itself for each header before the member's own
MAX_DIRECTORY = 4 << 20  # bytes of the directory of a zip, which is too
MAX_MEMBER_HEADERS = 10_000  # bytes that the headers of a member of a tar take, on average
PIECE = 1 << 18

_GZIP, _ZIP, _BZIP2, _XZ, _ZSTD = b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ\0", b"(\xb5/\xfd"
_USTAR = (257, b"ustar")
_ZIP_END = struct.Struct("<4s4H2LH")
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, EOFError, ValueError, NotImplementedError, RuntimeError)


class UnsafeArchive(Exception):
    """An archive that is not unpacked: it is broken, too large, or has what could lead out of its folder."""


def kind_of(path: Path, *, unpack: bool = True) -> ArtifactKind:
    """Return what a file is by its content. An archive of a kind that cannot be unpacked is refused, unless it is to stay as it is."""
    if not unpack:
        return "file"
    with path.open("rb") as file:
        head = file.read(512)
    if head.startswith((_BZIP2, _XZ, _ZSTD)):
        raise UnsafeArchive("it is compressed in a way that is not unpacked here; pack it as .tar.gz or .zip, or do not have it unpacked")
    if head.startswith(_ZIP):
        return "zip"
    return "tar" if head.startswith(_GZIP) or head[_USTAR[0] :].startswith(_USTAR[1]) else "file"


def check(path: Path, kind: ArtifactKind) -> None:
    """Refuse an archive that cannot be unpacked. It is read as a whole."""
    if kind != "file":
        _walk(path, kind, _Checker(path.stat().st_size))


def unpack(path: Path, kind: ArtifactKind, name: str, into: Path) -> int:
    """Unpack a file into an empty folder, read-only, and return the bytes that it takes there. One that is no archive is called `name`."""
    if kind == "file":
        shutil.copyfile(path, into / name)
        (into / name).chmod(0o555)
        return path.stat().st_size
    writer = _Writer(path.stat().st_size, into)
    _walk(path, kind, writer)
    writer.protect()
    return writer.bytes


def _walk(path: Path, kind: ArtifactKind, taker: _Checker) -> None:
    with _described(kind):
        if kind == "zip":
            _walk_zip(path, taker)
        else:
            _walk_tar(path, taker)


@contextmanager
def _described(kind: ArtifactKind) -> Iterator[None]:
    try:
        yield
    except UnsafeArchive:
        raise
    except _BROKEN as error:
        raise UnsafeArchive(f"the {kind} archive cannot be read: {str(error)[:200] or type(error).__name__}") from None


# ---- what is taken out ----


class _Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Checker:
    """Judges the members of an archive, one after the other."""

    def __init__(self, size: int) -> None:
        self.bytes = 0
        self._most = min(MAX_BYTES, max(size * RATIO, FREE_OF_RATIO))
        self._members = 0
        self._known: dict[str, str] = {}  # every path, folded, as it is spelled
        self._kinds: dict[str, str] = {"": "folder"}  # "folder", "file", "link"; by path
        self._named: set[str] = set()  # those that had a member of their own

    def folder(self, name: str) -> None:
        path = self._enter(name, "folder")
        if path:
            self._make_folder(path)

    def file(self, name: str, source: _Source, *, executable: bool) -> None:
        path = self._enter(name, "file")
        self._write(path, source, executable)

    def link(self, name: str, target: str) -> None:
        path = self._enter(name, "link")
        parts = target.split("/")
        up = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
        depth = path.count("/")
        if not target or target.startswith("/") or "\0" in target or up > depth or any(part in ("", ".", "..") for part in parts[up:]):
            raise UnsafeArchive(f"the link {name[:200]!r} leads to {target[:200]!r}, which is not known to be inside of the archive")
        self._make_link(path, target)

    def hard_link(self, name: str, target: str) -> None:
        original = self._path(target)
        if self._kinds.get(original) != "file":
            raise UnsafeArchive(f"the hard link {name[:200]!r} leads to {target[:200]!r}, which is no file before it in the archive")
        self._make_hard_link(self._enter(name, "file"), original)

    def count(self, size: int) -> None:
        """Count bytes as they are written: what a header says of them may be wrong."""
        self.bytes += size
        if self.bytes > self._most:
            limit = f"{MAX_BYTES:,} bytes" if self._most == MAX_BYTES else f"{RATIO} times its size"
            raise UnsafeArchive(f"the archive unpacks to more than {limit}")

    def _path(self, name: str) -> str:
        if not name or "\0" in name or "\\" in name or name.startswith("/"):
            raise UnsafeArchive(f"a member is called {name[:200]!r}; names must be relative, and without backslashes and NUL")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise UnsafeArchive(f"a member is called {name[:200]!r}, which leads out of the archive")
        if len(parts) > DEPTH:
            raise UnsafeArchive(f"a member lies in more than {DEPTH} folders: {name[:200]!r}")
        try:
            too_long = len(name.encode()) > MAX_PATH or any(len(part.encode()) > 255 for part in parts)
        except UnicodeEncodeError:
            raise UnsafeArchive(f"a member is called {name[:200]!r}, which is not UTF-8") from None
        if too_long:
            raise UnsafeArchive(f"a member has a name of more than 255 bytes, or a path of more than {MAX_PATH:,}: {name[:200]!r}")
        return "/".join(parts)

    def _enter(self, name: str, kind: str) -> str:
        """Note a member and the folders above it; return its path."""
        self._members += 1
        if self._members > MOST_MEMBERS:
            raise UnsafeArchive(f"the archive has more than {MOST_MEMBERS:,} members")
        path = self._path(name)
        if not path and kind != "folder":
            raise UnsafeArchive(f"a member is called {name[:200]!r}, which is the folder itself")
        if path in self._named:
            raise UnsafeArchive(f"{path[:200]!r} is in the archive more than once")
        parts = path.split("/") if path else []
        for depth in range(1, len(parts)):
            self._note("/".join(parts[:depth]), "folder")
        if path:
            self._note(path, kind)
        self._named.add(path)
        return path

    def _note(self, path: str, kind: str) -> None:
        folded = unicodedata.normalize("NFC", path).casefold()
        spelled = self._known.setdefault(folded, path)
        if spelled != path:
            raise UnsafeArchive(f"{spelled[:200]!r} and {path[:200]!r} are the same file where case does not count")
        if self._kinds.setdefault(path, kind) != kind:
            raise UnsafeArchive(f"{path[:200]!r} is in the archive as two different things")
        if len(self._kinds) > 4 * MOST_MEMBERS:
            raise UnsafeArchive(f"the archive has more than {4 * MOST_MEMBERS:,} files and folders")

    # what a writer does besides

    def _make_folder(self, path: str) -> None:
        """Nothing is written."""

    def _write(self, path: str, source: _Source, executable: bool) -> None:
        while piece := source.read(PIECE):
            self.count(len(piece))

    def _make_link(self, path: str, target: str) -> None:
        """Nothing is written."""

    def _make_hard_link(self, path: str, original: str) -> None:
        """Nothing is written."""


class _Writer(_Checker):
    """Writes the members too."""

    def __init__(self, size: int, into: Path) -> None:
        super().__init__(size)
        self._into = into

    def _make_folder(self, path: str) -> None:
        (self._into / path).mkdir(parents=True, exist_ok=True)

    def _write(self, path: str, source: _Source, executable: bool) -> None:
        target = self._into / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            while piece := source.read(PIECE):
                self.count(len(piece))
                file.write(piece)
            os.fchmod(file.fileno(), 0o555 if executable else 0o444)

    def _make_link(self, path: str, target: str) -> None:
        link = self._into / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def _make_hard_link(self, path: str, original: str) -> None:
        link = self._into / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.hardlink_to(self._into / original)

    def protect(self) -> None:
        """Take the right to write from all folders."""
        for folder, _, _ in os.walk(self._into, topdown=False):
            os.chmod(folder, 0o555)


# ---- tar ----


class _Forward:
    """A decompressed archive, read forwards only, in small parts. `tarfile` would read a header of any size into memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._at = 0
        self.header_reads = 0  # since the last member

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_HEADER:
            raise UnsafeArchive(f"the archive has a header of more than {MAX_HEADER:,} bytes")
        self.header_reads += 1
        if self.header_reads > MOST_HEADER_READS:
            raise UnsafeArchive("a member of the archive has too many headers")
        data = self._file.read(size)
        self._at += len(data)
        if self._at > MAX_BYTES + MOST_MEMBERS * MAX_MEMBER_HEADERS:
            raise UnsafeArchive(f"the archive unpacks to more than {MAX_BYTES:,} bytes")
        return data

    def tell(self) -> int:
        return self._at

    def seek(self, to: int) -> int:
        if to < self._at:
            raise UnsafeArchive("the archive cannot be read from front to back")
        while self._at < to and self.read(min(PIECE, to - self._at)):
            pass
        return self._at


def _walk_tar(path: Path, taker: _Checker) -> None:
    with path.open("rb") as plain:
        compressed = plain.read(2) == _GZIP
        plain.seek(0)
        stream: IO[bytes] = gzip.GzipFile(fileobj=plain) if compressed else plain  # type: ignore[assignment]
        forward = _Forward(stream)
        with tarfile.TarFile(fileobj=forward, mode="r", errorlevel=2, encoding="utf-8", errors="surrogateescape") as archive:  # type: ignore[arg-type]
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # they are not needed again
                _take(member, forward, taker)
                forward.header_reads = 0


def _take(member: tarfile.TarInfo, forward: _Forward, taker: _Checker) -> None:
    if member.issparse():
        raise UnsafeArchive(f"{member.name[:200]!r} is a sparse file, which is not unpacked here")
    if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
        forward.seek(member.offset_data)
        taker.file(member.name, _Part(forward, member.size), executable=bool(member.mode & 0o100))
    elif member.isdir():
        taker.folder(member.name)
    elif member.issym():
        taker.link(member.name, member.linkname)
    elif member.islnk():
        taker.hard_link(member.name, member.linkname)
    else:
        raise UnsafeArchive(f"{member.name[:200]!r} is neither a file nor a folder nor a link")


class _Part:
    """The bytes of one member."""

    def __init__(self, forward: _Forward, size: int) -> None:
        self._forward = forward
        self._left = size

    def read(self, size: int, /) -> bytes:
        data = self._forward.read(min(size, self._left))
        self._forward.header_reads = 0
        if not data and self._left:
            raise UnsafeArchive("the archive ends in the middle of a member")
        self._left -= len(data)
        return data


# ---- zip ----


def _walk_zip(path: Path, taker: _Checker) -> None:
    _check_directory(path)
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            mode = member.external_attr >> 16
            name = member.orig_filename
            if member.flag_bits & 0x1:
                raise UnsafeArchive(f"{name[:200]!r} is encrypted")
            if name.endswith("/"):
                taker.folder(name)
            elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
                with archive.open(member) as source:
                    taker.file(name, source, executable=bool(mode & 0o100))
            else:
                raise UnsafeArchive(f"{name[:200]!r} is neither a file nor a folder; a zip must not have links")


def _check_directory(path: Path) -> None:
    """Refuse a zip whose directory is too large, before it is read: each entry takes several times its size in memory."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - _ZIP_END.size - 65_535))
        tail = file.read()
    at = len(tail) - _ZIP_END.size
    if at < 0 or tail[at : at + 4] != b"PK\x05\x06" or tail[-2:] != b"\0\0":
        at = tail.rfind(b"PK\x05\x06", 0, len(tail) - _ZIP_END.size + 4)
    if at < 0:
        raise UnsafeArchive("the zip archive has no directory; it may have been cut off")
    directory = _ZIP_END.unpack_from(tail, at)
    if directory[4] == 0xFFFF or 0xFFFFFFFF in (directory[5], directory[6]) or b"PK\x06\x07" in tail[max(0, at - 20) : at]:
        raise UnsafeArchive("the zip archive is in the form for very large ones (ZIP64), which is not unpacked here")
    if directory[4] > MOST_MEMBERS or directory[5] > MAX_DIRECTORY:
        raise UnsafeArchive(f"the archive has more than {MOST_MEMBERS:,} members, or names that are too long")
