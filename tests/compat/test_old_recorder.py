"""The recorder's less known calls: units of time, settings, facts of the program, entities."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from support.process import Run

KEYS = ("id", "type", "key", "store", "uri")
BEGIN = """
import time
from dftracer.python import dft_fn, dftracer, EntityRelation, EntityRole, EntityStore
log = dftracer.initialize_log(None, None, -1)
"""


@pytest.mark.parametrize(("metric", "per_second"), [("NS", 10**9), ("US", 10**6), ("MS", 10**3), ("SEC", 1)])
def test_time_metric(metric: str, per_second: int, program: Callable[..., Run]) -> None:
    """`get_time` and `log_event` speak the unit; the trace stays in microseconds."""
    run = program(
        BEGIN
        + f"""
from dftracer.python import get_time_scale
assert get_time_scale() == {per_second}
assert abs(log.get_time() / {per_second} - time.time()) < 5
log.log_event("e", "c", 5 * {per_second}, 2 * {per_second})
assert log.get_config("DFTRACER_TIME_METRIC") == "{metric}"
log.finalize()
""",
        env={"DFTRACER_TIME_METRIC": metric},
    )
    event = run.one("e")
    assert (event.ts, event.dur) == (5_000_000, 2_000_000)


def test_settings_by_their_variable(program: Callable[..., Run]) -> None:
    """`get_config` gives what holds, as text; an unknown name is empty."""
    run = program(
        BEGIN
        + """
print(log.get_config("DFTRACER_ENABLE"), log.get_config("DFTRACER_DISABLE_IO"), repr(log.get_config("NOPE")))
""",
        env={"DFTRACER_DISABLE_IO": "1"},
    )
    assert run.stdout.split() == ["1", "1", "''"]


def _facts(run: Run, kind: str) -> list[Any]:
    values = [r.args["value"] for r in run.trace.records if r.name == "CM" and r.args["name"] == kind]
    return [json.loads(v) if v.startswith("{") else v for v in values]


def test_facts_of_the_program(program: Callable[..., Run]) -> None:
    """`set_app_metadata_*` and `mark_used` are records; an integration is told once."""
    run = program(
        BEGIN
        + """
log.set_app_metadata_int("layers", 12)
log.set_app_metadata_string("model", "unet")
log.mark_used("torch_profiler"); log.mark_used("torch_profiler"); log.mark_used("ai")
log.finalize()
"""
    )
    assert (_facts(run, "layers"), _facts(run, "model")) == (["12"], ["unet"])
    assert _facts(run, "used") == ["torch_profiler", "ai"]


def test_entities(program: Callable[..., Run]) -> None:
    """Ids are those that other writers give; each entity is told once, relations are args of the events."""
    run = program(
        BEGIN
        + """
log.declare_entity_type("protein_structure", EntityRole.OUTPUT, "folded")
structure = log.declare_entity("protein_structure", "MGYP0001", EntityStore.PARALLEL_FS, "/p/1")
assert structure == 0x8f0de68c04eea0bf == log.declare_entity("protein_structure", "MGYP0001")
with dft_fn("py", "fold") as fold:
    sample = fold.uses("raw_sample", 7)
    assert fold.generates("protein_structure", "MGYP0001") == structure
log.log_event("e", "c", 1, 1, relations={EntityRelation.USED: [sample], EntityRelation.CONTAINS: [sample]})
log.relate_entities(EntityRelation.DERIVED_FROM, structure, sample)
log.relate_entities(EntityRelation.USED, structure, sample)
log.relate_entities(EntityRelation.CONTAINS, 0, sample)
print(f"{sample:016x}")
log.finalize()
"""
    )
    sample = run.stdout.strip()
    structure = "8f0de68c04eea0bf"
    assert _facts(run, "entity") == [
        dict(zip(KEYS, (structure, "protein_structure", "MGYP0001", "parallel_fs", "/p/1"), strict=True)),
        dict(zip(KEYS, (sample, "raw_sample", "7", "memory", ""), strict=True)),
    ]
    assert _facts(run, "entity_type") == [
        {"type": "protein_structure", "role": "output", "description": "folded"}
    ]
    assert _facts(run, "entity_relation") == [
        {"relation": "derived_from", "subject": structure, "object": sample}
    ]
    fold, event = run.one("fold").args, run.one("e").args
    assert (fold["used"], fold["generated"], event["used"]) == ([sample], [structure], [sample])
    assert "contains" not in event


def test_entities_without_a_recorder(program: Callable[..., Run]) -> None:
    """Off, an entity is 0, and nothing happens."""
    program(
        BEGIN
        + """
fn = dft_fn("py", "f")
assert fn.uses("a", 1) == log.declare_entity("a", 1) == 0
log.log_event("e", "c", 1, 1, relations={EntityRelation.USED: [0]})
log.set_app_metadata_int("a", 1); log.mark_used("x"); log.declare_entity_type("a")
""",
        enable=False,
    )
    program(
        BEGIN + "fn = dft_fn('py', 'f', enable=False)\nassert fn.generates('a', 1) == 0\nlog.finalize()\n"
    )
