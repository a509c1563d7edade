"""Runs plain programs (zero_program.py) under `dftracer run`, and judges what the report says of them.

    python tests/gpu/zero_cases.py --out DIR [--device cpu] [--only input evaluate] [--no-cost]
    python tests/gpu/zero_cases.py --judge zero    what was recorded elsewhere, by the report of this machine

Prints a table, and leaves in DIR `table.md` and `zero.tar.gz`: of each case the trace, the program's own
truth, the report as JSON, and what was printed. Without a CUDA device use `--device cpu`: other models, the
same code. The exit code is 1 if a case is not as it should be.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "zero_program.py"
SKIPPED = 5  # steps at the beginning that are not steady
Json = dict[str, Any]


class Case:
    """What one run left, and what is wrong with it."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self.device, self.name = folder, device, folder.name
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.truth: Json = read_json(folder / "truth.json")
        self.report: Json = read_json(folder / "report.json")

    def check(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)

    def records(self) -> Iterator[Json]:
        for path in sorted((self.folder / "traces").glob("*.pfw.gz")):
            with gzip.open(path, "rt") as file:
                for line in file:
                    if line.startswith("{"):
                        yield json.loads(line)

    @property
    def bound(self) -> Json:
        return self.report.get("bound") or {}

    def share(self, line: str) -> float | None:
        """What the report's account says, in percent."""
        account = self.report.get("account")
        return None if not account else 100 * account[line]["share"]

    def own_share(self, kind: str) -> float:
        """The program's own, in percent of its steady steps."""
        steps = self.truth["steps"][SKIPPED:]
        total = sum(sum(step.values()) for step in steps)
        return float(100 * sum(step.get(kind, 0.0) for step in steps) / total)


def read_json(path: Path) -> Json:
    try:
        found: Json = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def bound_is(*allowed: str, never: tuple[str, ...] = ()) -> Callable[[Case], None]:
    """The verdict is one of these, and no finding above info is one of `never`."""

    def judge(case: Case) -> None:
        wanted = ("compute",) if allowed == ("device",) and case.device == "cpu" else allowed
        case.check(case.bound.get("id") in wanted, f"bound is {case.bound.get('id')}, not {wanted[0]}")
        for finding in case.report.get("findings", []):
            if finding["severity"] != "info" and finding["id"] in never:
                case.problems.append(f"finding {finding['id']}")

    return judge


def share_within(line: str, points: float, own: Callable[[Case], float]) -> Callable[[Case], None]:
    def judge(case: Case) -> None:
        truth, found = own(case), case.share(line)
        case.notes.append(f"{line} {truth:.1f} % by its own clock")
        if found is None:
            case.problems.append("the report has no account")
        else:
            case.check(abs(found - truth) <= points, f"{line} {found:.1f} %, not {truth:.1f} %")

    return judge


def evaluation_share(case: Case) -> float:
    """By the device's clock on a GPU: part of everything after the first steady step."""
    steps = case.truth["steps"][SKIPPED:]
    total = sum(sum(step.values()) for step in steps)
    measured = case.truth.get("evaluation_s")
    if not measured:
        return case.own_share("evaluation")
    # The last one comes after the last step, where the account ends.
    return float(100 * sum(measured[:-1]) / total)


def names_the_line(case: Case) -> None:
    stage = str(case.bound.get("stage"))
    wanted = f"log_metrics {PROGRAM.name}:{case.truth['sleeps_at']}"
    case.check(wanted in stage, f"stage is {stage!r}, not {wanted!r}")


def has_steps(case: Case) -> None:
    found = len(case.report.get("ledger", {}).get("steps", []))
    case.check(abs(found - len(case.truth["steps"])) <= 1, f"{found} steps of {len(case.truth['steps'])}")


def calls_are_recorded(case: Case) -> None:
    """Each blocking call of the program is there, and takes the time that the program measured."""
    found: dict[str, list[float]] = {}
    copied = 0
    for record in case.records():
        if record["cat"] != "CUDA" or record["ph"] != "X":
            continue
        name = record["name"]
        if name.startswith("cudaMemcpy"):
            name = record["args"].get("kind", name)
            copied += record["args"].get("bytes") == case.truth["bytes"] and name == "HtoD"
        found.setdefault(name, []).append(record["dur"] / 1e6)
    for kind, own in case.truth["calls"].items():
        seen = found.get(kind, [])
        case.check(len(seen) >= own["calls"], f"{kind}: {len(seen)} records of {own['calls']} calls")
        case.notes.append(f"{kind} {len(seen)} records {sum(seen):.3f} s, own clock {own['seconds']:.3f} s")
    copies = case.truth["calls"]["HtoD"]["calls"]
    case.check(copied >= copies, f"{copied} copies with their size, of {copies}")
    # `.item()` copies, and waits for the copy.
    for kinds in (["cudaDeviceSynchronize"], ["DtoH", "cudaStreamSynchronize"]):
        seen_s = sum(sum(found.get(kind, [])) for kind in kinds)
        own_s = case.truth["calls"][kinds[0]]["seconds"]
        case.check(seen_s >= 0.95 * own_s, f"{' and '.join(kinds)} take {seen_s:.3f} s, not {own_s:.3f} s")


def collectives_are_recorded(case: Case) -> None:
    """Below Python, in order, with their bytes; DDP's own among them."""
    below = [r for r in case.records() if r["cat"] == "comm" and r.get("args", {}).get("below_python")]
    by_comm: dict[str, list[Json]] = {}
    for record in below:
        if "seq" in record["args"]:
            by_comm.setdefault(record["args"]["comm"], []).append(record)
    case.check(bool(by_comm), "no NCCL call is recorded")
    for records in by_comm.values():
        numbers = [r["args"]["seq"] for r in sorted(records, key=lambda r: r["args"]["seq"])]
        case.check(numbers == list(range(1, len(numbers) + 1)), f"numbers are {numbers[:10]}")
    pairs = [[r["name"], r["args"]["bytes"]] for r in below if "bytes" in r["args"]]
    case.notes.append(f"{len(pairs)} NCCL calls in {len(by_comm)} communicators")
    for own in case.truth["collectives"]:
        case.check(own in pairs, f"{own} is missing")
    gradients = sum(size for name, size in pairs if name == "all_reduce")
    case.check(gradients >= 20 * case.truth["gradient_bytes"], f"DDP reduced {gradients} bytes")


# Of another cause than the verdict's.
OTHERS = ("transfer_bound", "step_drift", "input_bound", "device_idle", "unexplained_time")
DEVICE_BOUND = bound_is("device", never=(*OTHERS, "slow_steps"))

JUDGES: dict[str, list[Callable[[Case], None]]] = {
    "ckpt_list": [bound_is("checkpoint", never=OTHERS)],
    "ckpt_loader": [bound_is("checkpoint", never=OTHERS)],
    "transfer": [bound_is("transfer", never=OTHERS[1:])],
    "input": [
        bound_is("input", never=("transfer_bound", "step_drift", "unexplained_time")),
        share_within("input", 5, lambda case: case.own_share("input")),
    ],
    "own_code": [bound_is("own_code", never=OTHERS), names_the_line],
    "evaluate": [bound_is("evaluation", never=OTHERS), share_within("evaluation", 3, evaluation_share)],
    "item": [DEVICE_BOUND],
    "devsync": [DEVICE_BOUND],
    "graph": [DEVICE_BOUND, has_steps],
    "device_resident": [DEVICE_BOUND],
    "device_loader": [DEVICE_BOUND],
    "device_transformer": [DEVICE_BOUND],
    "calls": [calls_are_recorded],
    "one_rank": [collectives_are_recorded],
}
ONLY_CUDA = ("graph", "calls", "one_rank")  # without a device there is nothing in them to judge


def clean_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_")}


def run_case(folder: Path, device: str) -> float:
    folder.mkdir(parents=True)
    begin = time.monotonic()
    limit = 60 if device == "cuda" else 400
    with (folder / "printed.txt").open("w") as printed:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "dftracer.cli",
                "run",
                "-o",
                str(folder / "traces"),
                "--",
                sys.executable,
                str(PROGRAM),
                folder.name,
                device,
                str(folder / "truth.json"),
            ],
            env=clean_environment(),
            stdout=printed,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=limit,
        )
    report_case(folder)
    return time.monotonic() - begin


def report_case(folder: Path) -> None:
    with (folder / "printed.txt").open("a") as printed:
        done = subprocess.run(
            [sys.executable, "-m", "dftracer.cli", "report", "--json", "-q", str(folder / "traces")],
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=printed,
            text=True,
            check=False,
            timeout=120,
        )
    (folder / "report.json").write_text(done.stdout)


def take_case(recorded: Path, folder: Path) -> float:
    shutil.copytree(recorded, folder)
    begin = time.monotonic()
    report_case(folder)
    return time.monotonic() - begin


def judged(folder: Path, device: str) -> Case:
    case = Case(folder, device)
    case.check(bool(case.truth), "the program did not end: see printed.txt")
    if case.truth:
        for judge in JUDGES[case.name]:
            try:
                judge(case)
            except Exception as error:
                case.problems.append(f"{type(error).__name__}: {error}")
    return case


def row(case: Case, seconds: float) -> str:
    account = case.report.get("account") or {}
    lines = sorted(((v["share"], k) for k, v in account.items()), reverse=True)[:3]
    shares = ", ".join(f"{name} {100 * share:.1f}" for share, name in lines if share >= 0.005)
    alarms = ", ".join(f["id"] for f in case.report.get("findings", []) if f["severity"] != "info")
    verdict = f"{case.bound.get('id')} ({case.bound.get('stage')})"
    answer = "; ".join(case.problems) or "as it should be"
    notes = "; ".join(case.notes)
    return f"| {case.name} | {verdict} | {shares} | {alarms} | {notes} | {answer} | {seconds:.0f} s |"


def cost(device: str, rounds: int) -> Json:
    """A step of about 10 ms in which the host is the bottleneck, by turns with everything on and off."""
    os.environ["DFTRACER_ENABLE"] = "1"
    os.environ["DFTRACER_LOG_FILE"] = str(Path(tempfile.mkdtemp()) / "t")
    import torch  # noqa: PLC0415 - the switch is read first

    from dftracer import _session, auto  # noqa: PLC0415

    if device == "cpu":
        torch.set_num_threads(1)
    width, layers = 64, 40 if device == "cuda" else 20
    stack = [m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*stack).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=False)
    data = torch.utils.data.TensorDataset(torch.randn(16 * 40, width))

    def block() -> float:
        times = []
        begin = time.perf_counter()
        for (x,) in torch.utils.data.DataLoader(data, 16):
            loss = model(x.to(device)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if device == "cuda":
                torch.cuda.synchronize()
            end = time.perf_counter()
            times.append(end - begin)
            begin = end
        return statistics.median(times[15:])

    def traced_block() -> float:
        auto.install()
        try:
            return block()
        finally:
            auto.uninstall()
            _session.end()

    block()
    traced_block()
    ratios, plain = [], []
    for i in range(rounds):
        sides = (block, traced_block) if i % 2 else (traced_block, block)
        times = {side: side() for side in sides}
        plain.append(times[block])
        ratios.append(100 * (times[traced_block] / times[block] - 1))
    ratios.sort()
    spread = 0.98 * len(ratios) ** 0.5  # so far from the middle, ranks hold the median in 95 of 100 cases
    low, high = (ratios[int(min(max(len(ratios) / 2 + s, 0), len(ratios) - 1))] for s in (-spread, spread))
    return {
        "step_ms": 1e3 * statistics.median(plain),
        "percent": statistics.median(ratios),
        "low": low,
        "high": high,
        "rounds": rounds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "zero")))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", choices=tuple(JUDGES), default=list(JUDGES))
    parser.add_argument("--no-cost", action="store_true")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--judge", type=Path, metavar="DIR", help="run nothing: judge what lies in DIR")
    parser.add_argument("--cost-only", action="store_true", help="print what tracing costs, as JSON")
    args = parser.parse_args()
    if args.cost_only:
        print(json.dumps(cost(args.device, args.rounds)))
        return 0
    names = [n for n in args.only if args.device == "cuda" or n not in ONLY_CUDA]
    if args.judge:
        names = [n for n in names if (args.judge / n).is_dir()]
    if not args.judge:
        args.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="zero-"))
    table = [
        "| case | bound | account, % | findings | truth | answer | took |",
        "|" + "---|" * 7,
    ]
    print(*table, sep="\n", flush=True)
    failed = 0
    for name in names:
        try:
            seconds = (
                take_case(args.judge / name, work / name)
                if args.judge
                else run_case(work / name, args.device)
            )
        except subprocess.TimeoutExpired as late:
            seconds = late.timeout
        case = judged(work / name, args.device)
        failed += bool(case.problems)
        table.append(row(case, seconds))
        print(table[-1], flush=True)
    if not args.no_cost and not args.judge:
        done = subprocess.run(
            [
                sys.executable,
                __file__,
                "--cost-only",
                "--device",
                args.device,
                "--rounds",
                str(args.rounds),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        (work / "cost.json").write_text(done.stdout or done.stderr[-4000:])
        table.append(f"\ncost of a host-bound step, everything on: {done.stdout or done.stderr[-2000:]}")
        print(table[-1], flush=True)
    if args.judge:
        return 1 if failed else 0
    (args.out / "table.md").write_text("\n".join(table) + "\n")
    with tarfile.open(args.out / "zero.tar.gz", "w:gz") as tar:
        tar.add(work, "zero")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
