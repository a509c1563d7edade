"""The same answers by plain loops over the JSON: slow, simple, and written without looking at the columns."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

HOST = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver"}
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}


def load(path: Path) -> Any:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as f:
        return json.load(f)


def attributes(node: dict[str, Any]) -> dict[str, Any]:
    return {a["name"]: a["value"] for a in node["attrs"]}


class Naive:
    """Nodes by id, with the event each was joined to."""

    def __init__(self, et: Path, kineto: Path) -> None:
        trace, profile = load(et), load(kineto)
        base = profile.get("baseTimeNanoseconds", 0)
        self.events = [e for e in profile["traceEvents"] if e["ph"] == "X" and e.get("cat") in HOST | DEVICE]
        for e in self.events:
            e["start"] = base + round(e["ts"] * 1000)
            e["end"] = e["start"] + round(e["dur"] * 1000)
        self.nodes = {n["id"]: n for n in trace["nodes"]}
        by_rf = {
            e["args"]["Record function id"]: e
            for e in self.events
            if e["cat"] in ("cpu_op", "user_annotation") and e["args"].get("Record function id")
        }
        self.event: dict[int, dict[str, Any]] = {}
        for number, node in self.nodes.items():
            found = by_rf.get(attributes(node)["rf_id"])
            if found is not None and found["name"] == node["name"]:
                self.event[number] = found
        self.node_of = {id(e): n for n, e in self.event.items()}
        self.host = [e for e in self.events if e["cat"] in HOST]

    def holds(self, outer: dict[str, Any], inner: dict[str, Any]) -> bool:
        if outer is inner or outer["tid"] != inner["tid"]:
            return False
        if (outer["start"], outer["end"]) == (inner["start"], inner["end"]):
            return bool(self._record(outer) < self._record(inner))
        return bool(
            outer["start"] <= inner["start"]
            and inner["end"] <= outer["end"]
            and inner["start"] < outer["end"]
        )

    def _record(self, e: dict[str, Any]) -> float:
        return e.get("args", {}).get("Record function id") or float("inf")

    @cache  # noqa: B019 - one object for each file
    def parent_and_exclusive(self) -> tuple[dict[int, dict[str, Any] | None], dict[int, int]]:
        """For each host event (by `id()`) the innermost event around it,
        and the time not spent inside others.
        """
        parent: dict[int, dict[str, Any] | None] = {}
        by_thread = defaultdict(list)
        for e in self.host:
            by_thread[e["tid"]].append(e)
        for e in self.host:
            around = [o for o in by_thread[e["tid"]] if self.holds(o, e)]
            inner = None
            for o in around:
                if inner is None or self.holds(inner, o):
                    inner = o
            parent[id(e)] = inner
        exclusive = {id(e): e["end"] - e["start"] for e in self.host}
        for e in self.host:
            up = parent[id(e)]
            if up is not None:
                exclusive[id(up)] -= e["end"] - e["start"]
        return parent, exclusive

    def tensors(self, number: int, side: str) -> set[tuple[int, ...]]:
        """(tensor, storage, elements, item size) of all tensors a node takes or gives."""
        found: set[tuple[int, ...]] = set()

        def walk(value: Any) -> None:
            if isinstance(value, list):
                if (
                    len(value) == 6
                    and isinstance(value[5], str)
                    and all(isinstance(v, int) for v in value[:5])
                ):
                    found.add((value[0], value[1], value[3], value[4]))
                else:
                    for v in value:
                        walk(v)

        walk(self.nodes[number][side]["values"])
        return found

    def data_edges(self) -> set[tuple[int, int]]:
        """Maker and reader of each tensor, by going through all pairs."""
        parent, _ = self.parent_and_exclusive()
        timed = sorted(self.event, key=lambda n: (self.event[n]["start"], -self.event[n]["end"], n))
        place = {n: i for i, n in enumerate(timed)}
        gives = {n: self.tensors(n, "outputs") for n in timed}
        takes = {n: self.tensors(n, "inputs") for n in timed}
        makes: dict[int, set[tuple[int, ...]]] = {n: set(g) for n, g in gives.items()}
        for n in timed:
            up = parent[id(self.event[n])]
            while up is not None:
                above = self.node_of.get(id(up))
                if above is not None:
                    makes[above] -= gives[n]
                up = parent[id(up)]
        edges = set()
        for reader in timed:
            begin = self.event[reader]["start"]
            before = [w for w in timed if self.event[w]["end"] <= begin and w != reader]
            before.sort(key=lambda w: (self.event[w]["end"], place[w]))
            for tensor in takes[reader]:
                made = [w for w in before if tensor in makes[w]]
                if made:
                    edges.add((made[-1], reader))
                changed = [w for w in before if any(t[1] == tensor[1] and t in takes[w] for t in makes[w])]
                if changed and (not made or place[changed[-1]] > place[made[-1]]):
                    edges.add((changed[-1], reader))
        return edges

    def forward_backward(self) -> set[tuple[int, int]]:
        parent, _ = self.parent_and_exclusive()
        facts = {n: attributes(self.nodes[n]) for n in self.event}
        out = set()
        for n, f in facts.items():
            if f["fw_tid"] == 0 or not 0 <= f["seq_id"] < 1 << 62:
                continue
            up = parent[id(self.event[n])]
            above = facts.get(self.node_of.get(id(up), -1)) if up is not None else None
            if above is not None and above["seq_id"] == f["seq_id"] and above["fw_tid"]:
                continue
            made = [
                m
                for m, g in facts.items()
                if g["fw_tid"] == 0
                and g["seq_id"] == f["seq_id"]
                and g["tid"] == f["fw_tid"]
                and self.event[m]["start"] < self.event[n]["start"]
            ]
            if made:
                out.add((max(made, key=lambda m: self.event[m]["start"]), n))
        return out
