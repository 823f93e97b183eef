"""`duetime workers`: showing and draining one."""

from __future__ import annotations

import pytest

from tests.cli.conftest import CommandLine, Program


@pytest.mark.slow
def test_a_worker_is_shown_drained_and_let_go_on(program: Program, duetime: CommandLine) -> None:
    with program.worker("--handler", "greet"):
        [found] = duetime.json("workers")["items"]
        worker = found["id"]
        said = duetime("workers", "show", worker).stdout
        assert found["version"] in said
        assert found["python"] in said
        assert "claims nothing more; nothing runs in it" in duetime("workers", "drain", worker).stderr
        assert duetime.lines("workers")[1].split()[1] == "draining"
        task = duetime.submit("greet", "name=x")
        assert "drains: nothing more starts there" in duetime("why", task).stdout
        assert duetime.json("workers", "show", worker)["worker"]["draining"] is True
        assert "claims again" in duetime("workers", "drain", "--undo", worker).stderr
        duetime("submit", "greet", "name=y", "--wait")
        acts = [act["action"] for act in duetime.json("audit")["items"] if act["subject"] == worker]
        assert acts == ["workers.undo_drain", "workers.drain"]


def test_a_worker_that_is_not_there_ends_with_not_found(program: Program, duetime: CommandLine) -> None:
    duetime.submit("greet", "name=x", "--allow-unknown")
    assert "duetime workers" in duetime("workers", "drain", "nobody", code=3).stderr
