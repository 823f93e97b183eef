"""Archives that somebody else has made: what is unpacked, and what is refused without a trace outside of the folder."""

from __future__ import annotations

import gzip
import io
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from duetime.artifacts import unpacking
from duetime.artifacts.unpacking import UnsafeArchive, check, kind_of, unpack
from duetime.model.artifacts import ArtifactKind
from duetime.runtime.folders import remove_folder

Member = tuple[tarfile.TarInfo, bytes]


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.size = kind, link, mode, len(content)
    return info, content


def link(name: str, target: str) -> Member:
    return member(name, kind=tarfile.SYMTYPE, link=target)


def tar(path: Path, members: Iterable[Member], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return path


def zipped(path: Path, members: Iterable[tuple[str | zipfile.ZipInfo, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def entry(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return tmp_path / "packed"


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "outer" / "inner"
    folder.mkdir(parents=True)
    return folder


def refuse(packed: Path, into: Path, words: str | None = None, kind: ArtifactKind | None = None) -> None:
    """Assert that an archive is refused, when it is checked and when it is unpacked, and that nothing is outside of the folder."""
    kind = kind or kind_of(packed)
    with pytest.raises(UnsafeArchive, match=words):
        check(packed, kind)
    with pytest.raises(UnsafeArchive, match=words):
        unpack(packed, kind, "name", into)
    assert os.listdir(into.parent) == ["inner"]
    for folder, folders, files in os.walk(into):
        for name in [*folders, *files]:
            assert f"{os.path.realpath(os.path.join(folder, name))}/".startswith(f"{into}/")
    remove_folder(into)
    into.mkdir()


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_tar_is_unpacked_read_only_with_its_links(packed: Path, into: Path, mode: str) -> None:
    tar(
        packed,
        [
            *(member("./", kind=tarfile.DIRTYPE), member("bin/", kind=tarfile.DIRTYPE, mode=0o700)),
            *(member("bin/tool", b"#!/bin/sh\n", mode=0o4755), member("lib/a/data.txt", b"x" * 1_000, mode=0o666)),
            *(link("bin/short", "tool"), link("lib/a/up", "../../bin/tool"), link("lib/whole", "../bin"), link("dangling", "lib/none")),
            *(member("lib/again", kind=tarfile.LNKTYPE, link="bin/tool"), member("empty", b"")),
        ],
        mode,
    )
    assert kind_of(packed) == "tar"
    check(packed, "tar")
    assert unpack(packed, "tar", "name", into) == 1_010
    assert (
        (into / "lib/a/up").read_bytes() == (into / "lib/again").read_bytes() == (into / "lib/whole/short").read_bytes() == b"#!/bin/sh\n"
    )
    modes = {path: stat.S_IMODE((into / path).lstat().st_mode) for path in ("bin", "bin/tool", "lib/a", "lib/a/data.txt", "empty")}
    assert modes == {"bin": 0o555, "bin/tool": 0o555, "lib/a": 0o555, "lib/a/data.txt": 0o444, "empty": 0o444}
    assert stat.S_IMODE(into.stat().st_mode) == 0o555


def test_a_zip_is_unpacked_by_the_same_rules(packed: Path, into: Path) -> None:
    zipped(packed, [("lib/", b""), (entry("lib/tool", stat.S_IFREG | 0o755), b"#!/bin/sh\n"), ("data/a.txt", b"text")])
    assert kind_of(packed) == "zip"
    check(packed, "zip")
    assert unpack(packed, "zip", "name", into) == 14
    assert (into / "lib/tool").stat().st_mode & 0o777 == 0o555
    assert (into / "data/a.txt").stat().st_mode & 0o777 == 0o444


def test_a_single_program_stays_as_it_is_under_its_name(packed: Path, into: Path) -> None:
    packed.write_bytes(b"#!/bin/sh\n")
    assert kind_of(packed) == "file"
    check(packed, "file")
    assert unpack(packed, "file", "report.sh", into) == 10
    assert (into / "report.sh").stat().st_mode & 0o777 == 0o555


@pytest.mark.parametrize("head", [b"BZh9", b"\xfd7zXZ\0", b"(\xb5/\xfd"])
def test_other_archives_are_refused_unless_they_stay_as_they_are(packed: Path, head: bytes) -> None:
    packed.write_bytes(head + b"x" * 1_000)
    with pytest.raises(UnsafeArchive, match=r"pack it as .tar.gz or .zip"):
        kind_of(packed)
    assert kind_of(packed, unpack=False) == "file"


OUTSIDE: dict[str, list[Member]] = {
    "parent": [member("../outside", b"x")],
    "parent inside": [member("a/../../outside", b"x")],
    "hidden parent": [member("a/..", b"x")],
    "absolute": [member("/tmp/outside", b"x")],
    "backslash": [member("..\\outside", b"x")],
    "link out": [link("a", "../outside")],
    "absolute link": [link("a", "/etc/passwd")],
    "link out of a folder": [link("a/b", "../../outside")],
    "file through a link": [link("a", "b"), member("a/outside", b"x")],
    "folder through a link": [link("a", "."), member("a/b", kind=tarfile.DIRTYPE)],
    "link through a link": [link("d/l", ".."), link("m", "d/l/../outside")],
    "link and folder": [member("a/b", b"x"), link("a", "b")],
    "folder and file": [member("a", b"x"), member("a/b", b"x")],
    "hard link out": [member("a", kind=tarfile.LNKTYPE, link="../outside")],
    "absolute hard link": [member("a", kind=tarfile.LNKTYPE, link="/etc/passwd")],
    "hard link to a link": [link("b", "c"), member("a", kind=tarfile.LNKTYPE, link="b")],
    "hard link to nothing": [member("a", kind=tarfile.LNKTYPE, link="b")],
    "character device": [member("a", kind=tarfile.CHRTYPE)],
    "block device": [member("a", kind=tarfile.BLKTYPE)],
    "pipe": [member("a", kind=tarfile.FIFOTYPE)],
    "unknown type": [member("a", kind=b"Z")],
    "sparse": [member("a", b"\0" * 512, kind=tarfile.GNUTYPE_SPARSE)],
    "twice": [member("a", b"1"), member("a", b"2")],
    "twice by another spelling": [member("a/b", b"1"), member("a//./b", b"2")],
    "case": [member("Main.py", b"1"), member("main.py", b"2")],
    "case of folders": [member("Lib/a", b"1"), member("lib/b", b"2")],
    "case of composed letters": [member("\u00e4", b"1"), member("A\u0308", b"2")],
    "the folder itself": [member("./", b"x")],
    "empty link": [link("a", "")],
    "deep": [member("/".join(["a"] * 42), b"x")],
    "long": [member("a" * 256, b"x")],
    "long path": [member("/".join(["a" * 100] * 11), b"x")],
}


@pytest.mark.parametrize("members", OUTSIDE.values(), ids=OUTSIDE)
def test_what_could_lead_out_of_the_folder_or_be_something_else_is_refused(packed: Path, into: Path, members: list[Member]) -> None:
    refuse(tar(packed, members), into)


def test_what_the_filter_of_tarfile_refuses_is_refused_here(packed: Path, into: Path) -> None:
    data_filter: Callable[[tarfile.TarInfo, str], object] | None = getattr(tarfile, "data_filter", None)
    assert data_filter is not None, "this Python is older than 3.11.4"
    refused = 0
    for members in OUTSIDE.values():
        for info, content in members:
            try:
                data_filter(info, str(into))
            except tarfile.FilterError:
                refused += 1
                refuse(tar(packed, [(info, content)]), into)
    assert refused >= 8


@pytest.mark.parametrize(
    "members",
    [
        [("../outside", b"x")],
        [("/tmp/outside", b"x")],
        [("a/../../outside", b"x")],
        [("..\\outside", b"x")],
        [(entry("a", stat.S_IFLNK | 0o777), b"/etc/passwd")],
        [(entry("a", stat.S_IFCHR | 0o666), b"")],
        [(entry("a", stat.S_IFIFO | 0o666), b"")],
        [("Main.py", b"1"), ("main.py", b"2")],
        [("a", b"1"), ("a/b", b"2")],
    ],
)
def test_a_zip_with_such_things_is_refused(packed: Path, into: Path, members: list[tuple[str | zipfile.ZipInfo, bytes]]) -> None:
    refuse(zipped(packed, members), into)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_zip_with_a_name_twice_is_refused(packed: Path, into: Path) -> None:
    refuse(zipped(packed, [("a", b"1"), ("a", b"2")]), into, "more than once")


def test_a_small_archive_that_unpacks_to_much_is_refused(packed: Path, into: Path) -> None:
    much = b"\0" * 20_000_000
    refuse(tar(packed, [member("a", much)]), into, "unpacks to more than 100 times its size")
    refuse(zipped(packed, [("a", much)]), into, "unpacks to more than 100 times its size")


def test_a_tiny_archive_of_texts_that_shrink_well_is_unpacked(packed: Path, into: Path) -> None:
    tar(packed, [member("a", b"row\n" * 1_000_000)])
    assert packed.stat().st_size * 200 < 4_000_000
    assert unpack(packed, "tar", "name", into) == 4_000_000


def test_the_whole_is_bounded_too(packed: Path, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MAX_BYTES", 1_000)
    monkeypatch.setattr(unpacking, "MAX_MEMBER_HEADERS", 0)
    refuse(tar(packed, [member("a", b"x" * 600), member("b", b"x" * 600)]), into, "more than 1,000 bytes")
    refuse(tar(packed, [member("", b"x" * 600, kind=tarfile.XHDTYPE)] * 5), into, "more than 1,000 bytes")


def test_too_many_members_are_refused(packed: Path, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MOST_MEMBERS", 20)
    refuse(tar(packed, [member(f"{number}", b"") for number in range(21)]), into, "more than 20 members")
    refuse(tar(packed, [member(f"{'/'.join(str(number) * 9)}", b"") for number in range(9)]), into, "more than 80 files and folders")
    refuse(zipped(packed, [(f"z{number}", b"") for number in range(21)]), into, "more than 20 members")


def test_a_zip_that_says_that_it_has_few_members_is_not_believed(packed: Path, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zipped(packed, [(f"{number}", b"") for number in range(50)])
    data = bytearray(packed.read_bytes())
    at = data.rfind(b"PK\x05\x06")
    data[at + 8 : at + 12] = struct.pack("<2H", 3, 3)
    packed.write_bytes(data)
    monkeypatch.setattr(unpacking, "MOST_MEMBERS", 20)
    refuse(packed, into, "more than 20 members")
    monkeypatch.setattr(unpacking, "MAX_DIRECTORY", 100)
    refuse(packed, into, "more than 20 members, or names that are too long")


def test_a_header_that_would_fill_the_memory_is_refused(packed: Path, into: Path) -> None:
    header = member("x", b"20 path=" + b"a" * 2_000_000, kind=tarfile.XHDTYPE)
    refuse(tar(packed, [header, member("a", b"x")]), into, "header of more than 1,048,576 bytes")
    longname = member("x", b"a" * 2_000_000, kind=tarfile.GNUTYPE_LONGNAME)
    refuse(tar(packed, [longname, member("a", b"x")]), into, "header of more than 1,048,576 bytes")


def test_headers_without_end_are_refused(packed: Path, into: Path) -> None:
    headers = [member("x", b"11 a=bbbbb\n", kind=tarfile.XHDTYPE)] * 3_000
    refuse(tar(packed, [*headers, member("a", b"x")]), into, "too many headers")


@pytest.mark.parametrize("size", [5, 100, 600, -300])
def test_an_archive_that_was_cut_off_is_refused(packed: Path, into: Path, size: int) -> None:
    for archive in (tar(packed, [member("a", os.urandom(5_000))]), zipped(packed, [("b", os.urandom(5_000))])):
        kind = kind_of(archive)
        archive.write_bytes(archive.read_bytes()[:size])
        refuse(archive, into, kind=kind)


def test_what_only_looks_like_an_archive_is_refused(packed: Path, into: Path) -> None:
    packed.write_bytes(gzip.compress(b"a log, not a tar" * 100))
    refuse(packed, into, "the tar archive cannot be read")
    packed.write_bytes(b"PK\x03\x04" + b"x" * 100)
    refuse(packed, into, "no directory")
    packed.write_bytes(b"\x1f\x8b" + b"x" * 100)
    refuse(packed, into, "the tar archive cannot be read")


def test_an_encrypted_zip_is_refused(packed: Path, into: Path) -> None:
    zipped(packed, [("a", b"x")])
    data = bytearray(packed.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.find(signature)
        data[at + offset] |= 1
    packed.write_bytes(data)
    refuse(packed, into, "encrypted")


def test_a_zip_whose_content_is_another_than_it_says_is_refused(packed: Path, into: Path) -> None:
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a", b"hello")
    data = packed.read_bytes().replace(b"hello", b"jello")
    packed.write_bytes(data)
    refuse(packed, into, "CRC")
