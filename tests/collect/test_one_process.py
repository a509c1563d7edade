"""One process: windows, names, files, the manifest and the card."""

from __future__ import annotations

import hashlib
import json
import subprocess

import yaml

from dftracer.link.discover import discover
from dftracer.load.find import find_torch_files

from .conftest import MODEL, Collected, Runner, read_json

ODD = 'quo"te, "name": "x", \\back\n new line \t tab é \x01'


def test_windows_are_whole_and_named(run: Runner) -> None:
    """Each window has its own pair of files, every operator joined, whatever regions are called."""
    done = run(
        f"""
        from dftracer.python import ai
        from torch.profiler import record_function
        with collect("out", wait=1, warmup=1, active=2, repeat=3, et_windows=2) as c:
            for _ in range(14):
                with ai.compute.forward, record_function({ODD!r}), record_function("a \\"b\\""):
                    train_step()
                c.step()
        report = c.report
        import json
        print(json.dumps([report.coverage, len(report.windows), report.rank, str(report)]))
        """
    )
    for suffix in ("0", "0_w1"):
        done.assert_whole(suffix)
        et, kineto = done[f"torch_et_{suffix}.json.gz"], done[f"kineto_trace_{suffix}.json.gz"]
        for events in (et["nodes"], kineto["traceEvents"]):
            names = [event["name"] for event in events]
            assert names.count(ODD) == 2
            assert names.count('a "b"') == 2
    # Times without the cost of an execution trace: the third window has Kineto alone.
    assert "torch_et_0_w2.json.gz" not in done.names
    steps = [
        sorted(
            name for e in done[f"kineto_trace_0{w}.json.gz"]["traceEvents"] if "Step#" in (name := e["name"])
        )
        for w in ("", "_w1", "_w2")
    ]
    assert steps == [[f"ProfilerStep#{n}" for n in pair] for pair in ((2, 3), (6, 7), (10, 11))]
    assert not [name for name in done.names if name.startswith(".")], "a helper's file is left"
    coverage, windows, rank, text = json.loads(done.stdout.splitlines()[-1])
    assert (coverage, windows, rank) == (1.0, 3, 0)
    assert "window 1, steps 6 to 7" in text

    manifest = done.manifest()
    assert manifest["complete"] is True
    assert manifest["versions"]["torch"].startswith("2.")
    assert manifest["schedule"] == {"skip_first": 0, "wait": 1, "warmup": 1, "active": 2, "repeat": 3}
    assert [w["kind"] for w in manifest["windows"]] == ["et+kineto", "et+kineto", "kineto"]
    assert [w["steps"] for w in manifest["windows"]] == [[2, 3], [6, 7], [10, 11]]
    assert [w["coverage"] for w in manifest["windows"]] == [1.0, 1.0, None]
    assert manifest["windows"][1]["et"] == "torch_et_0_w1.json.gz"
    for window in manifest["windows"]:
        assert window["start_us"] < window["end_us"]
        kineto = done[window["kineto"]]
        starts = [e["ts"] for e in kineto["traceEvents"] if e["ph"] == "X" and e["cat"] == "cpu_op"]
        first_us = kineto["baseTimeNanoseconds"] / 1000 + min(starts)
        assert window["start_us"] - 50_000 < first_us < window["end_us"]
    for entry in manifest["files"]:
        assert (done.directory / entry["name"]).stat().st_size == entry["bytes"]
    clock = manifest["clock"]["start"]
    assert clock["error_ns"] < 1_000_000
    assert abs(clock["epoch_us"] - manifest["windows"][0]["start_us"]) < 120e6
    assert set(manifest["overheads"]["median_step_s"]) == {"wait", "warmup", "active", "done"}
    assert done["manifest.json"]["ranks_present"] == [0]

    events = done.events()
    ours = [e for e in events if e["cat"] == "PP"]
    assert [e["name"] for e in ours] == [f"ProfilerStep#{n}" for n in range(14)]
    assert len([e for e in events if e["name"] == "forward"]) == 14
    samples = done["memory_0.json.gz"]["samples"]
    assert len(samples) >= 15
    assert min(sample["rss"] for sample in samples) > 1 << 20

    card = yaml.safe_load((done.directory / "workload_card.yaml").read_text())
    assert {"json", "torch_et"} <= set(card["metric_source"]["traces"]), "as CCL-Bench's tools call them"
    assert card["workload"]["model"]["model_arch"]["num_params"] == 16 * 16 + 16 + 16 * 2 + 2
    assert card["workload"]["model"]["precision"] == "fp32"
    assert card["workload"]["hardware"]["xpu_spec"]["total_count"] == 1
    assert set(card) == {
        *("version", "description", "hf_url", "trace_url", "contributor", "contact"),
        *("workload", "Model-executor", "metric_source"),
    }


def test_loops_that_end_otherwise(run: Runner) -> None:
    """An exception, an end inside a window or while warming up, plain files, a second collection."""
    done = run(
        """
        try:
            card = {"description": "mine"}
            with collect("out", wait=0, warmup=1, active=5, compress=False, workload=card) as c:
                for number in range(4):
                    train_step()
                    if number == 2:
                        raise KeyError("mine")
                    c.step()
        except KeyError:
            print("passed on")
        with collect("early", wait=0, warmup=0, active=9) as c:
            for number in range(3):
                train_step()
                c.step()
        with collect("cold", wait=0, warmup=5, active=1) as c:
            for number in range(3):
                train_step()
                c.step()
        print(c.report.windows)
        only = {"traces": ("et", "kineto"), "finish": "inline", "plugins": ()}
        with collect("later", wait=0, warmup=0, active=1, **only) as c:
            for number in range(2):
                train_step()
                c.step()
        print(c.report.coverage)
        """
    )
    assert done.stdout.splitlines() == ["passed on", "[]", "1.0"]
    window = done.manifest()["windows"][0]
    assert (window["steps"], window["coverage"], window["ended_by"]) == ([1, 2], 1.0, "KeyError")
    assert {"torch_et_0.json", "kineto_trace_0.json"} <= done.names
    assert done["torch_et_0.json"]["nodes"]
    assert "description: mine" in (done.directory / "workload_card.yaml").read_text()
    early = _neighbour(done, "early")
    early.assert_whole()
    assert early.manifest()["windows"][0]["steps"] == [0, 3]
    cold = _neighbour(done, "cold")
    assert any("no window" in text for text in cold.manifest()["warnings"])
    later = _neighbour(done, "later")
    later.assert_whole()
    assert not list(later.directory.glob("*.pfw*"))


def _neighbour(done: Collected, name: str) -> Collected:
    """Another directory of the same process."""
    return type(done)(done.directory.parent / name, subprocess.CompletedProcess([], 0, "", ""))


def test_sigterm_keeps_the_window(run: Runner) -> None:
    """The open window is finished, then the signal does what it always does."""
    done = run(
        """
        import os, signal
        with collect("out", wait=0, warmup=0, active=9) as c:
            for number in range(5):
                train_step()
                c.step()
                if number == 2:
                    os.kill(os.getpid(), signal.SIGTERM)
        print("not reached")
        """,
        expect=-15,
    )
    assert "not reached" not in done.stdout
    done.assert_whole()
    assert done.manifest()["complete"] is True
    assert done.manifest()["windows"][0]["ended_by"] == "SIGTERM"


def test_without_torch_the_error_names_the_extra(run: Runner) -> None:
    """Importing is fine; collecting says what to install."""
    done = run(
        """
        import sys
        sys.modules["torch"] = None
        from dftracer.collect import collect
        try:
            with collect("out"):
                pass
        except ImportError as error:
            print(error)
        """,
        prelude="",
    )
    assert "pip install 'pydftracer[torch]'" in done.stdout


def test_the_prelude_is_what_users_write() -> None:
    """`collect` is imported before torch and before the annotations."""
    assert MODEL.strip().startswith("from dftracer.collect import collect")


def test_an_earlier_collection_is_kept(run: Runner) -> None:
    """A directory that is used again has the files of the last run; a folder in it has the earlier ones."""
    done = run(
        """
        import hashlib, json, os, pathlib

        def loop(repeat):
            with collect("out", wait=0, warmup=0, active=1, repeat=repeat) as c:
                for _ in range(3):
                    train_step()
                    c.step()
            files = pathlib.Path("out").glob("*_*.json.gz")
            return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}

        os.makedirs("out")
        pathlib.Path("out/kineto_trace_3.json.gz").write_bytes(b"of a larger job")
        first = loop(2)
        os.makedirs("out/linked")
        second = loop(1)
        print(json.dumps([first, second]))
        """
    )
    first, second = json.loads(done.stdout.splitlines()[-1])
    pair = {"torch_et_0.json.gz", "kineto_trace_0.json.gz", "memory_0.json.gz"}
    assert set(first) == pair | {"torch_et_0_w1.json.gz", "kineto_trace_0_w1.json.gz"}
    assert set(second) == pair
    other, mine = sorted(done.directory.glob("earlier-*"), key=lambda p: (p / "manifest_0.json").exists())
    assert (other / "kineto_trace_3.json.gz").read_bytes() == b"of a larger job"
    assert mine.name == f"earlier-{done.manifest()['run']}"
    for name, digest in first.items():
        assert hashlib.sha256((mine / name).read_bytes()).hexdigest() == digest
    assert {"manifest_0.json", "manifest.json", "workload_card.yaml", "linked"} <= {
        p.name for p in mine.iterdir()
    }
    assert len(read_json(mine / "manifest_0.json")["windows"]) == 2
    for folder, windows in ((done.directory, 1), (mine, 2)):
        (rank,) = discover(folder).ranks.values()
        assert (len(rank.et), len(rank.activity)) == (windows, windows)
        assert len(find_torch_files([folder])[0]) == windows
