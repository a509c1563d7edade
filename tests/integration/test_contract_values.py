"""Names and args of any kind come back exactly, or as near as JSON allows; nothing raises."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from support.process import Run

STRINGS = [
    "",
    'quote " and backslash \\',
    "new\nline\r\ttab",
    "\x00\x01\x1f\x7f",
    "grüße, 日本語, 🚀, \u2028\u2029",
    "</script>",
    "[list] {dict}, : ,",
    "é",
    "%s %d {} {0}",
    "x" * 100_000,
    "🚀" * 30_000,
]


@pytest.mark.parametrize("text", STRINGS, ids=range(len(STRINGS)))
def test_text_everywhere(text: str, traced: Callable[..., Run]) -> None:
    """A text comes back as it was: as name, category, key, value, nested value and metadata."""
    run = traced(
        f"""
        text = {text!r}
        with dft_fn(cat=text or "c", name="n" + text): pass
        with ai.compute.forward(args={{"k" + text: text, "nested": [text, {{text: text}}]}}): pass
        log.log_event("e" + text, text, log.get_time(), 1, string_args={{"s": text}})
        log.log_metadata_event("m" + text, text)
        with ai.compute.derive(name="d" + text): pass
        """
    )
    trace = run.trace
    assert trace.one("n" + text).cat == (text or "c")
    assert trace.one("forward").user_args == {"k" + text: text, "nested": [text, {text: text}]}
    assert trace.one("e" + text).user_args == {"s": text}
    assert trace.one("compute.d" + text).cat == "compute"
    assert [r.args["value"] for r in trace.metadata("CM") if r.args["name"] == "m" + text] == [text]


NUMBERS: list[tuple[str, Any]] = [
    ("0", 0),
    ("-1", -1),
    ("2**31", 2**31),
    ("2**40", 2**40),
    ("2**53 + 1", 2**53 + 1),
    ("2**63 - 1", 2**63 - 1),
    ("-2**63", -(2**63)),
    ("0.1", 0.1),
    ("1e300", 1e300),
    ("5e-324", 5e-324),
    ("-0.0", -0.0),
    ("1.0", 1.0),
    ("3.141592653589793", 3.141592653589793),
    ("float('nan')", None),
    ("float('inf')", None),
    ("-float('inf')", None),
    ("True", True),
    ("False", False),
    ("None", None),
    ("[1, 2.5, 'x', None, [], {}]", [1, 2.5, "x", None, [], {}]),
    ("(1, 2)", [1, 2]),
    ("{'a': {'b': [1, {'c': 2}]}}", {"a": {"b": [1, {"c": 2}]}}),
    ("b'abc'", "abc"),
    ("bytearray(b'abc')", "abc"),
    ("np.int64(7)", 7),
    ("np.float64(0.1)", 0.1),
    ("np.float32(0.5)", 0.5),
    ("np.bool_(True)", True),
    ("pathlib.Path('/a/b')", "/a/b"),
]


def test_values(traced: Callable[..., Run]) -> None:
    """Numbers, containers and the usual scalars of other libraries keep value and kind."""
    expressions = [expression for expression, _ in NUMBERS]
    run = traced(
        f"""
        import pathlib
        import numpy as np
        for i, expression in enumerate({expressions!r}):
            with ai.compute.forward(args={{"i": i, "v": eval(expression)}}): pass
        """
    )
    found = {e.args["i"]: e.args["v"] for e in run.trace.named("forward")}
    wrong = {
        expression: found[i] for i, (expression, value) in enumerate(NUMBERS) if repr(found[i]) != repr(value)
    }
    assert wrong == {}


def test_integers_beyond_64_bits(traced: Callable[..., Run]) -> None:
    """2**70 comes back exactly, as a number or as its digits."""
    run = traced("ai.update(step=2**64 - 1)\nwith ai.compute.forward(args={'v': 2**70, 'w': -2**70}): pass")
    args = run.one("forward").args
    assert [int(args[k]) for k in ("v", "w", "step")] == [2**70, -(2**70), 2**64 - 1]


def test_broken_text_is_replaced(traced: Callable[..., Run]) -> None:
    """Lone surrogates and invalid UTF-8 cost the broken part only."""
    run = traced(
        r"""
        with ai.compute.forward(args={"s": "a\ud800b", "b": b"a\xffb", "k\udc80": 1}): pass
        with dft_fn("c\udfff", "n\udfff"): pass
        log.log_metadata_event("m\ud800", "v\ud800")
        """
    )
    trace = run.trace
    forward = trace.one("forward")
    for key in ("s", "b"):
        value = forward.args[key]
        assert value.startswith("a")
        assert value.endswith("b")
    assert len(trace.events) == 2
    for file in trace:
        file.text.encode("utf-8")


def test_objects_that_resist(traced: Callable[..., Run]) -> None:
    """Cycles, deep nesting, failing reprs, huge containers: one valid line each, and no exception."""
    run = traced(
        """
        class Failing:
            def __repr__(self): raise RuntimeError
            __str__ = __index__ = __float__ = __iter__ = __len__ = __repr__
        class Exiting:
            def __repr__(self): raise SystemExit(3)
        cycle = []; cycle.append(cycle)
        mapping = {}; mapping["me"] = mapping
        wide = []; wide.extend([wide, {"w": wide}, (wide,), wide])
        deep = []
        for _ in range(100_000): deep = [deep]
        class Weird(dict):
            def items(self): raise RuntimeError
            keys = __iter__ = items
        values = [Failing(), Exiting(), cycle, mapping, deep, object(), type, len, 1j, {1, 2}, frozenset(),
                  range(3), Weird(a=1), memoryview(b"x"), list(range(100_000)), Failing, ai, log, wide]
        for i, v in enumerate(values):
            with ai.compute.forward(args={"i": i, "v": v}): pass
            ai.compute.update(args={"u": v})
            with ai.compute.backward: pass
        for bad in (3, "text", [1], Failing(), Weird(a=1)):
            try: ai.compute.step(args=bad)
            except TypeError: pass
            try: ai.compute.update(args=bad)
            except TypeError: pass
        log.log_event(3, None, log.get_time(), 5)
        log.log_event("neg", "c", -5, -5)
        log.log_event("str", "c", "now", None, {"a": "text"}, {"b": "text"}, {"c": 3})
        log.log_metadata_event(None, object())
        """
    )
    trace = run.trace
    assert [e.args["i"] for e in trace.named("forward")] == list(range(19))
    assert len(trace.named("backward")) == 19
    assert trace.named("forward")[14].args["v"] == list(range(100_000))
    assert run.stderr == ""


def test_reserved_keys_do_not_break_the_tree(traced: Callable[..., Run]) -> None:
    """A user's `level`, `p_idx` or `hhash` neither doubles a key nor misplaces the event."""
    run = traced(
        """
        with ai.pipeline.train:
            with ai.compute.forward(args={"level": "top", "p_idx": 99, "hhash": 1, "k": 2}):
                with ai.data.item: pass
        """
    )
    trace = run.trace
    forward = trace.one("forward")
    assert forward.level == 2
    assert forward.parent_id == trace.one("train").id
    assert forward.args["k"] == 2
    assert trace.one("item").parent_id == forward.id


def test_order_of_args(traced: Callable[..., Run]) -> None:
    """hhash, p_idx, the user's args in their order, level; compact JSON."""
    run = traced('with ai.compute.forward(args={"z": 1, "a": 2, "m": {"y": 1, "b": 2}}): pass')
    forward = run.one("forward")
    assert list(forward.args) == ["hhash", "p_idx", "z", "a", "m", "level"]
    assert forward.line == json.dumps(forward.raw, separators=(",", ":"))


def test_one_key_after_string_conversion(traced: Callable[..., Run]) -> None:
    """Keys that are no strings become strings."""
    run = traced("with ai.compute.forward(args={1: 'a', None: 'b', (1, 2): 'c', True: 'd'}): pass")
    assert set(run.one("forward").user_args.values()) <= {"a", "b", "c", "d"}


def test_many_distinct_names_and_args(traced: Callable[..., Run]) -> None:
    """Interning has no limit that loses or mixes up names."""
    run = traced(
        """
        for i in range(20_000):
            log.log_event(f"name{i}", f"cat{i % 100}", 1_000_000 + i, i, {"i": i}, None, {"s": f"text{i}"})
        """
    )
    events = run.trace.events
    assert len(events) == 20_000
    for event in events:
        i = event.args["i"]
        assert (event.name, event.cat, event.dur) == (f"name{i}", f"cat{i % 100}", i)
        assert event.args["s"] == f"text{i}"
        assert event.ts == 1_000_000 + i
