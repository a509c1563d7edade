"""Runs that end early, hardly begin, or look up more files than they read: nothing untrue is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dftracer.analyze import Analysis, analyze
from dftracer.report import document, head, markdown, print_report
from dftracer.report.contents import evidence_rows, notes, shown_files
from dftracer.testing.synthetic import EPOCH_US, Process

MS = 1000


def _train(p: Process, steps: int, wait: int = MS, learns: bool = True) -> int:
    t = 0
    for i in range(steps):
        body = t + wait
        p.span("compute", "forward", body, 10 * MS)
        if learns:
            p.span("compute", "backward", body + 10 * MS, 8 * MS)
            p.span("compute", "step", body + 18 * MS, MS)
        t = p.step(i + 1, t, wait, 19 * MS, step=i)
    return t


def _analysis_of(p: Process, folder: Path) -> tuple[Analysis, dict[str, Any]]:
    p.write(folder)
    a = analyze(folder)
    return a, document(a)


@pytest.mark.parametrize("end", [None, {"recovered": True}])
def test_the_forward_of_a_step_that_was_killed_is_no_evaluation(tmp_path: Path, end: Any) -> None:
    p = Process(10, rank=0, end=end)
    t = _train(p, 20)
    p.span("compute", "forward", t + MS, 10 * MS)
    _, result = _analysis_of(p, tmp_path)
    assert result["evaluation"]["seconds"] == 0
    assert result["outside"]["seconds"] == pytest.approx(0.011)


def test_an_evaluation_that_was_killed_still_is_one(tmp_path: Path) -> None:
    p = Process(10, rank=0, end=None)
    t = _train(p, 20)
    for i in range(8):
        p.span("compute", "forward", t + 10 * i * MS, 10 * MS)
    _, result = _analysis_of(p, tmp_path)
    assert result["evaluation"]["seconds"] == pytest.approx(0.08)


def test_a_single_forward_at_the_end_of_a_whole_run_is_an_evaluation(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = _train(p, 20)
    p.span("compute", "forward", t, 10 * MS)
    _, result = _analysis_of(p, tmp_path)
    assert result["evaluation"]["seconds"] == pytest.approx(0.01)


def test_a_process_belongs_to_one_of_several_trainings(tmp_path: Path) -> None:
    for pid in (10, 20):
        p = Process(pid)
        _train(p, 20)
        p.write(tmp_path)
    helper = Process(30, rank=0)  # by its variables; it trains nothing
    helper.io("read", 0, 5 * MS, "/data/a", count=1)
    helper.write(tmp_path)
    a = analyze(tmp_path)
    members = [p.process.pid for job in (a.job, *a.job.others) for r in job.ranks for p in r.members]
    assert sorted(members) == [10, 20, 30]


def test_a_step_that_raised_is_not_time_between_steps(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = _train(p, 20)
    p.span("compute", "forward", t + MS, 10 * MS)
    p.span("compute", "backward", t + 11 * MS, 900 * MS, error="RuntimeError")
    a, result = _analysis_of(p, tmp_path)
    assert result["outside"]["seconds"] == pytest.approx(0.911)
    assert result["bound"]["id"] == "compute"
    assert "between_steps" not in [f.id for f in a.findings]


def test_who_died_is_told_in_the_singular_and_a_pid_is_no_amount(tmp_path: Path) -> None:
    p = Process(17316, rank=0, end={"recovered": True})
    _train(p, 20)
    a, _ = _analysis_of(p, tmp_path)
    found = next(f for f in a.findings if f.id == "incomplete_trace")
    assert found.title.endswith("it is rank 0 (pid 17316, last step 19).")
    assert dict(evidence_rows(found.evidence))["recovered processes"] == "17316"


@pytest.mark.parametrize("steps", [1, 2])
def test_a_loop_that_is_wrapped_need_not_be_wrapped(tmp_path: Path, steps: int) -> None:
    p = Process(10, rank=0)
    _train(p, steps)
    a, _ = _analysis_of(p, tmp_path)
    assert head(a)[2] == "Let it run for more steps."


def test_advice_on_start_up_names_workers_only_where_there_are_any(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    _train(p, 10)
    p.span("pipeline", "train", -2000 * MS, 2500 * MS)
    a, result = _analysis_of(p, tmp_path)
    assert result["bound"]["id"] == "startup"
    assert "worker" not in " ".join(head(a))


def test_a_run_of_evaluation_alone_speaks_of_no_steady_steps(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = _train(p, 20, learns=False)
    p.span("pipeline", "test", 0, t)
    p.span("data", "item", 0, MS // 2)
    a, result = _analysis_of(p, tmp_path)
    assert result["bound"]["id"] == "evaluation"
    assert result["samples_per_s"] is None
    assert "0.00 s" not in " ".join(head(a))


def test_steps_of_another_thread_are_not_left_out_in_silence(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    for tid, steps in ((10, 30), (11, 20)):
        for i in range(steps):
            p.step(i + 1, 100 * i * MS, 10 * MS, 90 * MS, tid=tid)
    p.write(tmp_path)
    a = analyze(tmp_path)
    assert len(document(a)["ledger"]["steps"]) == 30
    result = "20 steps of other threads are not shown: a rank's steps are those of the thread with the most."
    assert result in notes(a)
    assert result in markdown(a)


def test_the_advice_names_commands_that_exist(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(20):
        t = p.step(i + 1, t, MS, 30 * MS)
    a, result = _analysis_of(p, tmp_path)
    assert result["bound"]["id"] == "unseen"
    assert "--auto" not in head(a)[2]


def test_files_that_were_only_written_were_not_read_meanwhile(tmp_path: Path) -> None:
    p, worker = Process(10, rank=0), Process(11, ppid=10)
    t = 0
    for i in range(20):
        worker.io("read", t, 8 * MS, "/data/a", ret=4096)
        worker.io("write", t + 10 * MS, 8 * MS, "/tmp/log", ret=4096)
        p.span("compute", "forward", t + 20 * MS, 10 * MS)
        t = p.step(i + 1, t, 20 * MS, 10 * MS)
    worker.write(tmp_path)
    a, _ = _analysis_of(p, tmp_path)
    found = next(f for f in a.findings if f.id == "input_bound")
    assert [*found.evidence["files_while_waiting_s"]] == ["/data/a"]


def test_paths_that_were_only_looked_up_share_a_row(tmp_path: Path, capsys: Any) -> None:
    p = Process(10, rank=0)
    _train(p, 5)
    for i in range(300):
        p.io("lstat", 100 * MS + i, 1, f"/lib/python/{i % 30}", ret=0)
    p.io("open", 102 * MS, 5, "/data/a", ret=3, flags=0)
    p.io("read", 103 * MS, 9, "/data/a", ret=10)
    a, result = _analysis_of(p, tmp_path)
    assert a.file_table is not None
    rows = shown_files(a.file_table)
    assert rows.select("path", "ops").rows() == [
        ("(30 paths only looked up)", 300),
        ("/data/a", 2),
    ]
    assert rows["time_s"].sum() == pytest.approx(a.file_table["time_s"].sum())
    assert (result["files_total"], len(result["files"])) == (31, 31)  # nothing is lost for programs
    print_report(a)
    assert "(30 paths only looked up)" in capsys.readouterr().out


def test_files_that_nobody_asks_about_are_not_shown(tmp_path: Path) -> None:
    """A redirected stdout, where Python looks for its settings and for a place for temporary files, ours."""
    p = Process(10, rank=0)
    _train(p, 5)
    p.io("write", 101 * MS, 9, "/home/me/train.log", ret=80)  # handed over: nobody opened it
    p.io("close", 102 * MS, 0, "/home/me/errors.log", ret=0)
    p.io("fopen", 103 * MS, 5, "/usr/bin/python3.11._pth", ret=0)
    p.io("open", 104 * MS, 5, "/tmp/dftracer-run-0123456789abcdef-announced", ret=3, flags=0)
    for name in ("open", "write", "close", "unlink"):
        p.io(name, 105 * MS, 5, "/tmp/3oem4u_h", ret=4 if name == "write" else 0)
    p.io("open", 110 * MS, 5, "/data/mapped.bin", ret=3, flags=0)
    p.io("write", 111 * MS, 500 * MS, "/slow/handed.log", ret=80)  # so slow that it is news
    a, result = _analysis_of(p, tmp_path)
    assert a.file_table is not None
    assert shown_files(a.file_table)["path"].to_list() == ["/slow/handed.log", "/data/mapped.bin"]
    assert result["files_total"] == 7


def test_compilers_are_no_workers_of_the_loader(tmp_path: Path) -> None:
    """torch.compile starts programs that read files; none of them loads data."""
    p = Process(10, rank=0)
    t = _train(p, 20)
    for i in range(20):
        p.span("data", "item", 20 * i * MS, 100)
    for pid in range(11, 16):
        tool = Process(pid, ppid=10)
        for i in range(10):
            tool.io("read", t // 2 + i * MS, 900, "/usr/include/stdio.h", ret=4096)
        tool.write(tmp_path)
    worker = Process(16, ppid=10)
    for i in range(20):
        worker.span("data", "item", 20 * i * MS, 10 * MS)
    worker.write(tmp_path)
    _, result = _analysis_of(p, tmp_path)
    assert [w["pid"] for w in result["workers"]] == [16]


def _set_up(p: Process, at: int, **more: int) -> int:
    """What automatic tracing tells before the first step: when torch was there, and an optimizer."""
    p.span("dftracer", "optimizer", at, 0, auto=1, imported_us=EPOCH_US, **more)
    return at


@pytest.mark.parametrize(("importing", "told"), [(0, 0.9), (500, 0.4), (890, None)])
def test_what_the_first_optimizer_imports_is_no_set_up(
    tmp_path: Path, importing: int, told: float | None
) -> None:
    p = Process(10, rank=0)
    t = _set_up(p, 900 * MS, **({"importing_us": importing * MS} if importing else {}))
    for i in range(30):
        p.span("compute", "forward", t + MS, 9 * MS, auto=1)
        t = p.step(i + 1, t, MS, 10 * MS, step=i, auto=1)
    a, _ = _analysis_of(p, tmp_path)
    found = [f.seconds for f in a.findings if f.id == "before_first_step"]
    assert found == ([] if told is None else [pytest.approx(told)])


def test_start_up_that_wins_is_told_whole(tmp_path: Path) -> None:
    """What the program set up before anything was recorded counts once start-up is the answer."""
    p = Process(10, rank=0)
    t = _set_up(p, 400 * MS)
    for i in range(5):
        wait = 600 * MS if i == 0 else 3 * MS
        p.span("compute", "forward", t + wait, 10 * MS, auto=1)
        t = p.step(i + 1, t, wait, 10 * MS, step=i, auto=1)
    _, result = _analysis_of(p, tmp_path)
    assert result["bound"]["id"] == "startup"
    assert result["startup"]["setup_s"] == pytest.approx(0.4)
    assert result["bound"]["seconds"] == pytest.approx(result["startup"]["seconds"])


@pytest.mark.parametrize("before", [0, 500])
def test_the_largest_part_is_not_said_beside_a_larger_start(tmp_path: Path, before: int) -> None:
    p = Process(10, rank=0)
    t = _set_up(p, before * MS)
    for i in range(5):
        p.span("compute", "forward", t + 3 * MS, 10 * MS, auto=1)
        t = p.step(i + 1, t, 3 * MS, 10 * MS, step=i, auto=1)
    p.span("pipeline", "evaluate", t, 450 * MS, auto=1)
    _, result = _analysis_of(p, tmp_path)
    assert result["bound"]["id"] == "evaluation"
    where = " after the start" if before else ""
    assert result["verdict"].startswith(f"Evaluation is the largest part{where}: 0.45 s")


@pytest.mark.parametrize("again", [0, 1])
def test_a_compilation_of_forward_and_backward_is_no_recompilation(tmp_path: Path, again: int) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(20):
        took = 0
        if i < 2:  # the graph of the forward pass, then that of the backward pass
            took = 300 * MS
            p.span("dynamo", "recompile" if i < again else "compile", t + 2 * MS, took, auto=1)
        p.span("compute", "forward", t + MS, 10 * MS + took, auto=1)
        t = p.step(i + 1, t, MS, 12 * MS + took, step=i, auto=1)
    a, result = _analysis_of(p, tmp_path)
    assert result["bound"]["id"] == "compilation"
    (first, *_) = result["findings"]
    if again:
        assert (first["id"], [s["id"] for s in first["symptoms"]]) == ("recompiles", ["compilation_time"])
        assert first["evidence"]["recompilations"] == 1
    else:
        assert first["id"] == "compilation_time"
        assert not [f for f in a.findings.every() if f.id == "recompiles"]
    assert ("ecompil" in a.head[2]) == bool(again)


def _with_own_work(p: Process, *own: tuple[str, int]) -> None:
    t = 0
    for i in range(20):
        start = t + MS
        for name, took in (*own, ("forward", 5)):
            p.span("compute" if name == "forward" else "user", name, start, took * MS)
            start += took * MS
        t = p.step(i + 1, t, MS, start - t - MS)


def test_work_of_the_user_in_two_halves_is_not_put_on_one(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    _with_own_work(p, ("tokenize", 20), ("augment", 18), ("log", 6))
    a, result = _analysis_of(p, tmp_path)
    assert (result["bound"]["id"], result["bound"]["stage"]) == ("other", "tokenize")
    assert "bound by tokenize and augment: 88 %" in a.verdict
    assert any(f.title.endswith("spent in tokenize and augment.") for f in a.findings)


def test_the_start_of_workers_is_no_work_of_the_user(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    _with_own_work(p, ("tokenize", 20))
    p.io("fork", -5000 * MS, 4000 * MS, "/bin/python", ret=11)
    a, _ = _analysis_of(p, tmp_path)
    assert "bound by tokenize" in a.verdict
    assert not any("fork" in f.title for f in a.findings)
