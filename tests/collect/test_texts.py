"""Schedules, texts and names, without a process."""

from __future__ import annotations

import json

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dftracer.collect import _card
from dftracer.collect._window_files import EtText, KinetoText, as_kineto_writes
from dftracer.collect._windows import Schedule

NUMBERS = st.integers(0, 3)


@given(wait=NUMBERS, warmup=NUMBERS, active=st.integers(1, 3), repeat=NUMBERS, skip=NUMBERS)
@settings(max_examples=60, deadline=None)
def test_the_schedule_is_torchs(wait: int, warmup: int, active: int, repeat: int, skip: int) -> None:
    """Step by step the same phases as torch.profiler.schedule."""
    ours = Schedule(wait, warmup, active, repeat, skip)
    theirs = torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=repeat, skip_first=skip)
    action = torch.profiler.ProfilerAction
    for step in range(40):
        place, wanted = ours.at(step), theirs(step)
        assert {"wait": action.NONE, "done": action.NONE, "warmup": action.WARMUP}.get(
            place.phase, action.RECORD_AND_SAVE if place.last else action.RECORD
        ) == wanted


def _et(name: str, value: str = "x") -> str:
    return (
        '{\n  "schema": "1.1.1-chakra.0.0.4", "pid": 7, "time": "now", "start_ts": 5,\n  "nodes": [\n'
        f'      {{\n        "id": 4, "name": "{name}", "ctrl_deps": 3,\n'
        f'        "inputs": {{"values": ["{value}"], "shapes": [[]], "types": ["String"], '
        '"strides": [[]]},\n'
        '        "outputs": {"values": [], "shapes": [], "types": [], "strides": []},\n'
        '        "attrs": [{"name": "rf_id", "type": "uint64", "value": 2}]\n      }\n  ],\n'
        '  "finish_ts": 9\n}'
    )


@given(name=st.text(max_size=30).filter(lambda s: "\r" not in s and "\n      }" not in s))
@settings(max_examples=150, deadline=None)
def test_any_name_is_read_back(name: str) -> None:
    """What torch does not escape is JSON afterwards, with the name as it was."""
    source = _et(name.encode("utf-8", "replace").decode())
    text = EtText(line + "\n" for line in source.split("\n"))
    nodes = list(text.nodes())
    assert len(nodes) == 1
    assert json.loads(nodes[0][0]) == nodes[0][1]
    plain = not set(name) & set('"\\')
    if plain:
        assert nodes[0][1]["name"] == name
    assert nodes[0][1]["ctrl_deps"] == 3
    assert (text.finish_ts, text.complete, text.head["pid"]) == (9, True, 7)


def test_string_values_and_cut_files() -> None:
    """Quotes in values, and a process that was killed while writing."""
    source = _et("op", 'a {"b": "c"} \\d')
    ((body, node),) = EtText(line + "\n" for line in source.split("\n")).nodes()
    assert json.loads(body)["attrs"][0]["value"] == 2
    assert node["inputs"]["types"] == ["String"] or node["inputs"]["values"] == []
    cut = source[: source.index('  ],\n  "finish')] + '      {\n        "id": 5, "na'
    text = EtText(line + "\n" for line in cut.split("\n"))
    assert len(list(text.nodes())) == 1
    assert not text.complete


@pytest.mark.parametrize(
    ("name", "written"),
    [('a "b"', 'a "b"'), ("a\nb", "ab"), ("a\\b", "a/b"), ("é", "unknown"), ("\t", "unknown")],
)
def test_kineto_names(name: str, written: str) -> None:
    """What Kineto makes of names, so that they can be recognised."""
    assert as_kineto_writes(name) == written
    source = (
        '{\n    "baseTimeNanoseconds": 10,\n    "traceEvents": [\n  {\n    "ph": "X",\n'
        f'    "name": "{written}",\n    "ts": 1.5, "dur": 2\n  }}\n  ],"traceName": "x" }}'
    )
    text = KinetoText(source.splitlines(keepends=True))
    ((_, event),) = text.events()
    assert event["name"] == written
    assert (text.base_ns, text.complete) == (10, True)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.dictionaries(st.text(min_size=1, max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1, max_size=8), VALUES | st.lists(st.text(max_size=5)), max_size=4))
@settings(max_examples=150, deadline=None)
def test_the_card_is_yaml(content: dict[str, object]) -> None:
    """Whatever is in it."""
    text = _card.dump_yaml(content)
    assert (yaml.safe_load(text) or {}) == content
