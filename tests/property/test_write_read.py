"""Whatever is recorded comes back: arbitrary names, categories, args and metadata, written and read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.process import PRELUDE, run_program

# A surrogate has no UTF-8: what becomes of one is tested by name elsewhere.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
keys = texts.filter(lambda k: k not in ("hhash", "p_idx", "level", "count", "error", "active"))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
records = st.lists(
    st.fixed_dictionaries(
        {
            "name": texts,
            "cat": texts,
            "args": st.dictionaries(keys, values, max_size=5),
            "how": st.sampled_from(["log_event", "use", "update", "decorator"]),
            "meta": st.tuples(texts, texts),
        }
    ),
    min_size=1,
    max_size=30,
)

# The interpreter is started once per batch: the generated data travels as JSON, which is exact for it.
PROGRAM = """
import json, os
from dftracer.python import DFTracerAI
batch = json.load(open(os.environ["BATCH"], encoding="utf-8"))
for index, one in enumerate(batch):
    name, cat, args = one["name"], one["cat"], one["args"]
    log.log_metadata_event(f"{index} " + one["meta"][0], one["meta"][1])
    if one["how"] == "log_event":
        _core.log_event(name, cat, 1_000_000_000 + 1000 * index, 5000, args)
        continue
    node = DFTracerAI(cat=cat, name=name)
    if one["how"] == "use":
        with node(args=args): pass
    elif one["how"] == "update":
        node.update(args=args)
        with node: pass
    else:
        node(args=args)(lambda: None)()
"""


def _same(a: Any, b: Any) -> bool:
    """Equal in value and kind; -0.0 is not 0.0."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(v, b[k]) for k, v in a.items())
    return bool(a == b)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=records)
def test_write_then_read(batch: list[dict[str, Any]], tmp_path_factory: Any) -> None:
    """Exact values, kinds and order of keys; metadata too."""
    base: Path = tmp_path_factory.mktemp("batch")
    path = base / "batch.json"
    path.write_text(json.dumps(batch), encoding="utf-8")
    run = run_program(
        base, PROGRAM, prelude=PRELUDE + "from dftracer import _core\n", env={"BATCH": str(path)}
    )
    trace = run.trace
    (file,) = trace.files
    events = sorted(file.events, key=lambda e: e.id)
    assert len(events) == len(batch)
    for one, event in zip(batch, events, strict=True):
        # A node without a name is called as its category.
        name = one["name"] or (one["cat"] if one["how"] != "log_event" else "")
        assert (event.name, event.cat) == (name, one["cat"])
        assert _same(event.user_args, one["args"]), (event.user_args, one["args"])
    metadata = {r.args["name"]: r.args["value"] for r in trace.metadata("CM")}
    for index, one in enumerate(batch):
        assert metadata[f"{index} " + one["meta"][0]] == one["meta"][1]
    assert run.stderr == ""


# Shapes of nesting: each program is a list of steps over a small set of nodes.
steps = st.recursive(
    st.sampled_from(["with", "call", "raise", "loop", "generator", "startstop"]).map(lambda k: [k]),
    lambda inner: st.builds(
        lambda kind, body: [kind, *body],
        st.sampled_from(["with", "call", "raise", "loop", "generator", "startstop"]),
        st.lists(inner, max_size=3),
    ),
    max_leaves=12,
)

NESTING = """
import json, os
counter = [0]
def run(step):
    kind, *body = step
    counter[0] += 1
    node = ai.compute.derive(name=f"{kind}{counter[0]}")
    def inner():
        for s in body: run(s)
    if kind == "with":
        with node: inner()
    elif kind == "call":
        node(inner)()
    elif kind == "raise":
        try:
            with node:
                inner()
                raise ValueError
        except ValueError: pass
    elif kind == "loop":
        for _ in node.iter(range(1)): inner()
    elif kind == "generator":
        def gen():
            inner()
            yield 1
        list(node(gen)())
    else:
        node.start(); inner(); node.stop()
for tree in json.loads(os.environ["STEPS"]): run(tree)
with ai.data.item: pass
"""


def _expected(step: list[Any], counter: list[int], above: str | None, out: dict[str, str | None]) -> None:
    kind, *body = step
    counter[0] += 1
    name = f"compute.{kind}{counter[0]}"
    if kind == "loop":
        name += ".block"
    out[name] = above
    for inner in body:
        _expected(inner, counter, name, out)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees=st.lists(steps, min_size=1, max_size=4))
def test_any_nesting_has_the_right_parents(trees: list[list[Any]], tmp_path_factory: Any) -> None:
    """Blocks, calls, errors, loops, generators and pairs nested at will: the tree is the program's."""
    run = run_program(
        tmp_path_factory.mktemp("nesting"), NESTING, prelude=PRELUDE, env={"STEPS": json.dumps(trees)}
    )
    trace = run.trace
    expected: dict[str, str | None] = {}
    counter = [0]
    for tree in trees:
        _expected(tree, counter, None, expected)
    by_id = {e.id: e for e in trace.events}
    for name, above in expected.items():
        event = trace.one(name)
        assert (by_id[event.parent_id].name if event.parent_id != -1 else None) == above
        assert ("error" in event.args) == (name.startswith("compute.raise"))
    assert trace.one("item").level == 1
    for event in trace.events:
        if event.parent_id != -1:
            parent = by_id[event.parent_id]
            assert event.level == parent.level + 1
            assert parent.ts <= event.ts
            assert event.end <= parent.end
