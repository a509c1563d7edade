"""Files of others, damaged ones, and what the verdict says when it does not know."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from dftracer.cli.main import main
from dftracer.format.hang_file import read_hang_file
from dftracer.postmortem import gather, judge
from dftracer.postmortem.evidence import elastic_errors, flight_recorder_dumps
from dftracer.postmortem.stacks import Tree, rank_set
from support.process import run_program

MOVED_US = 1_790_000_000_000_000


def hang(rank: int, ranks: int = 3, **more: Any) -> dict[str, Any]:
    """A rank that waits in the all-reduce that all wait in, unless it says otherwise."""
    return {
        "rank": rank,
        "run": "job",
        "attempt": 0,
        "pid": 4_000_000 + rank,  # more than there can be
        "host": "elsewhere",
        "world_size": ranks,
        "state": "waiting",
        "step": 7,
        "stage": "backward",
        "where": "train.py:88 main",
        "since_s": 61.0,
        "collective": {"group": "0", "seq": 41, "op": "all_reduce", "bytes": 1 << 20},
        "open_file": None,
        "moved_us": MOVED_US + rank,
        "written_us": MOVED_US + 61_000_000,
        "went_on_after_s": None,
        "groups": [],
        "threads": [
            {
                "tid": 4_000_000 + rank,
                "name": "python",
                "state": "S",
                "call": "futex",
                "path": "",
                "frames": ["/job/train.py:88 main", "/job/train.py:99 <module>"],
            }
        ],
        "workers": [],
        "events": [],
        **more,
    }


def job(folder: Path, *result: dict[str, Any]) -> dict[str, Any]:
    for each in result:
        (folder / f"hang_{each['rank']}.json").write_text(json.dumps(each))
    return judge(gather(folder)).to_json()


def test_all_in_the_same_collective(tmp_path: Path) -> None:
    answer = job(tmp_path, *(hang(r) for r in range(3)))
    assert (answer["class"], answer["rank"]) == ("same_collective", None)
    assert "all_reduce #41 (group 0, 1.0 MiB)" in answer["sentence"]


def test_a_rank_without_files_is_named_as_unknown(tmp_path: Path) -> None:
    answer = job(tmp_path, hang(0), hang(2))
    assert answer["missing_ranks"] == [1]
    assert "rank 1 may not have arrived: nothing is known about it" in answer["sentence"]


def test_ranks_in_different_collectives(tmp_path: Path) -> None:
    other = {"group": "0", "seq": 41, "op": "broadcast", "bytes": 8}
    answer = job(tmp_path, hang(0), hang(1, collective=other, where="train.py:70 sync"), hang(2))
    assert (answer["class"], answer["rank"]) == ("order_mismatch", 1)
    assert "ranks 0, 2 are in all_reduce #41" in answer["sentence"]
    assert "rank 1 is in broadcast #41 (group 0, 8 B) in `sync`, train.py:70" in answer["sentence"]


UNSEEN: dict[str, Any] = {"collective": None, "stage": "forward", "where": None, "threads": []}


def test_a_rank_of_which_nothing_is_seen_has_made_no_progress(tmp_path: Path) -> None:
    """Without a stack, an open file and a telling stage, the sentence still says what is known."""
    answer = job(tmp_path, hang(0), hang(1, **UNSEEN), hang(2, **UNSEEN))
    assert answer["rank"] == 1
    assert " Rank 1 has made no progress since " in answer["sentence"]
    assert answer["more"] == ["Rank 2 is not in it either."]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((0, 1), "Rank 1 hangs in start-up, before the first step: it has made no progress since "),
        ((1,), "Rank 1 hangs in start-up, before the first step, since "),
    ],
)
def test_a_rank_of_which_nothing_is_seen_in_start_up(
    tmp_path: Path, ranks: tuple[int, ...], words: str
) -> None:
    startup: dict[str, Any] = {"step": None, "stage": "startup"}
    seen = {0: hang(0, 2, **startup), 1: hang(1, 2, **{**UNSEEN, **startup})}
    assert job(tmp_path, *(seen[r] for r in ranks))["sentence"].startswith(words)


def test_a_hang_that_is_over_is_none(tmp_path: Path) -> None:
    answer = job(tmp_path, *(hang(r, went_on_after_s=74.0) for r in range(3)))
    assert answer["class"] not in ("same_collective", "missing_rank")


def test_a_collective_that_fails_because_the_job_is_ended_is_no_going_on(tmp_path: Path) -> None:
    """Those that are killed last see their collective end."""
    at: dict[str, Any] = {"where": "data.py:57 load_shard", "open_file": "/data/shard-17.tar"}
    stands = hang(1, state="blocked", stage="own_code", collective=None, **at)
    answer = job(tmp_path, hang(0), stands, hang(2, went_on_after_s=20.0))
    assert (answer["class"], answer["rank"]) == ("missing_rank", 1)
    assert "ranks 0, 2 have been waiting in it" in answer["sentence"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"threads": 3}', '{"rank": 1}', "\x00" * 10])
def test_damaged_hang_files_are_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "hang_0.json").write_text(text)
    assert read_hang_file(tmp_path / "hang_0.json") is None
    assert main(["postmortem", str(tmp_path)]) == 2


def test_odd_values_in_a_hang_file(tmp_path: Path) -> None:
    odd = hang(
        0, ranks=1, collective="none", step="x", groups=[3], threads=[{}, 5], workers=[{"threads": None}]
    )
    answer = job(tmp_path, odd)
    assert answer["ranks"][0]["step"] is None
    assert main(["postmortem", str(tmp_path), "--html", str(tmp_path / "page.html")]) == 1
    assert "<h1>" in (tmp_path / "page.html").read_text()


def test_stacks_of_a_thousand_ranks_are_a_few_lines() -> None:
    tree = Tree()
    for rank in range(1000):
        tree.add(rank, ["<module>", "main", "backward" if rank != 17 else "load_shard"])
    assert [(ranks, text) for _, ranks, text in tree.lines()] == [
        ("0-999", "<module> > main"),
        ("0-16, 18-999", "backward"),
        ("17", "load_shard"),
    ]
    assert rank_set([5, 1, 2, 3]) == "1-3, 5"


def test_error_files_of_torch_elastic(tmp_path: Path) -> None:
    errors = pytest.importorskip("torch.distributed.elastic.multiprocessing.errors.error_handler")
    place = tmp_path / "run" / "attempt_1" / "2"
    place.mkdir(parents=True)
    before = os.environ.get("TORCHELASTIC_ERROR_FILE")
    os.environ["TORCHELASTIC_ERROR_FILE"] = str(place / "error.json")
    try:
        try:
            raise ValueError("the labels do not fit")
        except ValueError as error:
            errors.ErrorHandler().record_exception(error)
    finally:
        del os.environ["TORCHELASTIC_ERROR_FILE"]
        if before is not None:
            os.environ["TORCHELASTIC_ERROR_FILE"] = before
    result = elastic_errors(tmp_path)[2]
    assert result["text"] == "the labels do not fit"
    assert result["exception"].startswith("ValueError at test_evidence.py:")


def test_dumps_of_the_flight_recorder(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"):
        pytest.skip("this torch has no recorder for gloo")
    program = """
import pickle, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
done = -1
while done != 1:  # a thread of gloo notes it, after it has told the program
    time.sleep(0.01)
    dump = torch._C._distributed_c10d._dump_fr_trace()
    done = pickle.loads(dump)["pg_status"]["0"]["last_completed_collective"]
open(sys.argv[1], "wb").write(dump)
"""
    dump = tmp_path / "nccl_trace_rank_4"
    run_program(tmp_path / "program", program, argv=(str(dump),), forked=True)
    result = flight_recorder_dumps(tmp_path)[4]
    assert result["groups"]["0"] == (1, 1)


def test_a_dump_that_would_run_something_is_not_read(tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(tmp_path / "made"),))

    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": [Runs()]}))
    assert flight_recorder_dumps(tmp_path) == {}
    assert not (tmp_path / "made").exists()
