"""The `artifacts` commands."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    (tmp_path / "main.py").write_text("print('hello')\n")
    path = tmp_path / "monthly.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "main.py", "main.py")
    return path


def test_an_artifact_is_put_shown_restored_and_deleted(duetime: CommandLine, packed: Path) -> None:
    first = duetime("artifacts", "put", "monthly", str(packed), "--run", "python main.py", "--note", "the first").stdout
    assert first.startswith("put monthly@1, ")
    script = packed.with_name("main.py")
    second = duetime.json("artifacts", "put", "monthly", str(script), "--run", "python main.py")
    assert (second["version"], second["kind"], second["run"]) == (2, "file", ["python", "main.py"])
    listed = duetime("artifacts").stdout
    assert "monthly@2" in listed
    assert "monthly@1" not in listed
    assert duetime.json("artifacts", "list")["items"] == [second]
    versions = duetime("artifacts", "show", "monthly").stdout
    assert "monthly@2" in versions
    assert "monthly@1" in versions
    one = duetime("artifacts", "show", "monthly@1").stdout
    assert "python main.py" in one
    assert "the first" in one
    assert duetime.json("artifacts", "show", "monthly@2") == second
    assert duetime("artifacts", "restore", "monthly@1").stdout.startswith("restored monthly@1 as monthly@3, ")
    assert duetime("artifacts", "delete", "monthly@2").stdout.startswith("deleted monthly@2, ")
    assert [each["version"] for each in duetime.json("artifacts", "show", "monthly")["items"]] == [3, 1]
    audit = [(each["action"], each["subject"]) for each in duetime.json("audit")["items"]]
    assert audit == [
        ("artifacts.delete", "monthly@2"),
        ("artifacts.restore", "monthly@1"),
        ("artifacts.put", "monthly"),
        ("artifacts.put", "monthly"),
    ]


def test_a_version_that_a_stored_handler_needs_is_deleted_only_by_force(duetime: CommandLine, packed: Path) -> None:
    duetime("artifacts", "put", "monthly", str(packed))
    duetime("handlers", "put", "report", "--artifact", "monthly@1")
    said = duetime("artifacts", "delete", "monthly@1", code=4).stderr
    assert "monthly@1 is needed by 1 stored handler, report: without it their tasks fail" in said
    assert "--force removes it all the same. Handlers that are declared by code are not known here" in said
    assert duetime("artifacts", "delete", "monthly@1", "--force").stdout.startswith("deleted monthly@1, ")
    acts = [(each["action"], each["outcome"]) for each in duetime.json("audit", "--action", "artifacts.delete")["items"]]
    assert acts == [("artifacts.delete", "done"), ("artifacts.delete", "refused")]


def test_a_jar_stays_as_it_is(duetime: CommandLine, packed: Path) -> None:
    assert duetime.json("artifacts", "put", "tool", str(packed), "--no-unpack")["kind"] == "file"


def test_mistakes_end_with_the_code_for_them(duetime: CommandLine, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    duetime("artifacts", "put", "monthly", str(packed))
    assert "there is no artifact 'none'" in duetime("artifacts", "show", "none", code=3).stderr
    assert "`duetime artifacts show monthly` lists its versions" in duetime("artifacts", "show", "monthly@7", code=3).stderr
    assert "such as monthly@1" in duetime("artifacts", "delete", "monthly", code=2).stderr
    assert "there is no artifact" in duetime("artifacts", "restore", "monthly@9", code=3).stderr
    assert "cannot be read: No such file" in duetime("artifacts", "put", "monthly", str(tmp_path / "none"), code=2).stderr
    assert "Is a directory" in duetime("artifacts", "put", "monthly", str(tmp_path), code=2).stderr
    assert "must not contain '@'" in duetime("artifacts", "put", "a@b", str(packed), code=2).stderr
    assert "No closing quotation" in duetime("artifacts", "put", "monthly", str(packed), "--run", "python 'x", code=2).stderr
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(packed.read_bytes()[:50])
    assert (
        "broken.tar.gz cannot be an artifact: the tar archive cannot be read"
        in duetime("artifacts", "put", "monthly", str(broken), code=2).stderr
    )
    monkeypatch.setenv("DUETIME_ARTIFACT_CAP", "10")
    assert "size must be 1 to 10 bytes" in duetime("artifacts", "put", "monthly", str(packed), code=2).stderr
    monkeypatch.setenv("DUETIME_ARTIFACTS", "ftp://server/folder")
    expected = "DUETIME_ARTIFACTS must be a folder or a bucket, such as file:///var/lib/duetime/artifacts or s3://bucket/prefix"
    assert expected in duetime("artifacts", code=2).stderr


def test_the_doctor_finds_a_version_whose_bytes_are_gone(duetime: CommandLine, packed: Path, tmp_path: Path) -> None:
    duetime("artifacts", "put", "monthly", str(packed))
    duetime("artifacts", "put", "other", str(packed.with_name("main.py")))
    assert "missing artifact" not in duetime("doctor").stdout
    digest = duetime.json("artifacts", "show", "monthly@1")["sha256"]
    (tmp_path / "store.db-duetime" / "artifacts" / "sha256" / digest).unlink()
    examined = duetime("doctor", code=1).stdout
    assert "problem: missing artifact: monthly@1: its bytes are gone" in examined
    assert "other@1" not in examined
    duetime("artifacts", "put", "monthly", str(packed))
    assert "missing artifact" not in duetime("doctor").stdout
