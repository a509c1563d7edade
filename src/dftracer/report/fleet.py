"""A fleet as text, and as a page with a heat map of all ranks and steps."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any, Final

import numpy as np

from dftracer._text import Column, plural, seconds_text
from dftracer.analyze.fleet import Fleet, SlowGroup
from dftracer.analyze.say.wording import stage_words
from dftracer.report.jobs import page, table

# Cells of the heat map in the page: more ranks or steps share one, which shows the worst of them.
_MAX_ROWS, _MAX_COLUMNS = 2500, 1600
_ZERO: Final = 55  # the value of a cell at the median; one step is 1 % of a step's time, 0: no such step

RANK_COLUMNS = (
    Column("rank", right=True),
    Column("slow in", whole=True),
    Column("behind the median rank", right=True),
)
GROUP_COLUMNS = (
    Column("ranks", lead=True),
    Column("first host", drop=1),
    Column("slow in", whole=True),
    Column("each behind the median rank", right=True),
)
LEDGER_COLUMNS = (Column("stage", whole=True), Column("time", right=True), Column("share", right=True))
STEP_COLUMNS = (Column("step", right=True), Column("longer than usual", right=True))


def short_ranks(ranks: list[int]) -> str:
    """`3, 8-15`."""
    parts: list[str] = []
    first = before = ranks[0]
    for rank in [*ranks[1:], -1]:
        if rank != before + 1:
            parts.append(str(first) if first == before else f"{first}-{before}")
            first = rank
        before = rank
    return ", ".join(parts) if len(parts) <= 8 else f"{', '.join(parts[:8])} and more"


def fleet_lines(fleet: Fleet) -> list[str]:
    """What there is to say, the most important first."""
    n = fleet.steps.size
    lines = [
        f"{plural(int(fleet.ranks.size), 'rank')}, {plural(n, 'step')};"
        f" a step takes {seconds_text(fleet.usual_us / 1e6)}."
    ]
    for group in fleet.slow_groups[:3]:
        lines.append(
            f"{_group_name(group)} lose time in {stage_words(group.stage)}: each {_per_step(group.seconds, n)}."
        )
    for rank in fleet.slow_ranks[:3]:
        lines.append(
            f"Rank {rank.rank} loses time in {stage_words(rank.stage)}: {_per_step(rank.seconds, n)}."
        )
    if fleet.slow_steps:
        worst = fleet.slow_steps[0]
        more = f", the worst of {len(fleet.slow_steps)}" if len(fleet.slow_steps) > 1 else ""
        lines.append(
            f"Step {worst.step} took all ranks {seconds_text(worst.seconds)} longer than usual{more}."
        )
    if len(lines) == 1:
        lines.append("No rank, group of ranks or step stands out.")
    trend = fleet.trend()
    change = trend["last_s"] / trend["first_s"] - 1 if trend["first_s"] else 0.0
    if abs(change) >= 0.05:
        lines.append(
            f"Steps at the end take {abs(change):.0%} {'longer' if change > 0 else 'less'} than at first."
        )
    if fleet.damaged:
        lines.append(f"{plural(fleet.damaged, 'file')} of rows had parts that could not be read.")
    return lines


def _group_name(group: SlowGroup) -> str:
    return f"{len(group.ranks)} ranks ({short_ranks(group.ranks)})"


def _per_step(seconds: float, steps: int) -> str:
    each = seconds_text(seconds / max(1, steps))
    return f"{each} a step behind the median rank, {seconds_text(seconds)} in all"


def heat_cells(fleet: Fleet) -> dict[str, Any]:
    """The heat map: how far each rank was from the median rank, in each step, in % of a usual step."""
    rank_block = -(-fleet.ranks.size // _MAX_ROWS)
    step_block = -(-fleet.steps.size // _MAX_COLUMNS)
    rows, columns = -(-fleet.ranks.size // rank_block), -(-fleet.steps.size // step_block)
    cells = np.zeros((rows, columns), np.uint8)
    usual = max(fleet.usual_us, 1.0)
    for column in range(columns):
        part = fleet.own[:, column * step_block : (column + 1) * step_block]
        missing = np.isnan(part)
        middle = np.nanmedian if missing.any() else np.median
        value = np.rint((part - middle(part, axis=0)) * (100 / usual)) + _ZERO
        value = np.where(missing, 0, np.clip(value, 1, 255)).max(axis=1).astype(np.uint8)
        cells[:, column] = np.maximum.reduceat(value, np.arange(0, value.size, rank_block))
    return {
        "rows": rows,
        "columns": columns,
        "rank_block": rank_block,
        "step_block": step_block,
        "zero": _ZERO,
        "cells": base64.b64encode(zlib.compress(cells.tobytes(), 6)).decode(),
    }


def _table(columns: tuple[Column, ...], rows: Sequence[tuple[str, ...]]) -> str:
    return table([c.name for c in columns], rows)


def _sections(fleet: Fleet) -> str:
    out = []
    if fleet.slow_groups:
        rows = [
            (
                f'<button data-rank="{g.ranks[0]}" data-many="{len(g.ranks)}">'
                f"{escape(short_ranks(g.ranks))}</button>",
                escape(g.host or ""),
                escape(g.stage),
                seconds_text(g.seconds),
            )
            for g in fleet.slow_groups
        ]
        out.append(f"<section><h2>Slow groups</h2>{_table(GROUP_COLUMNS, rows)}</section>\n")
    if fleet.slow_ranks:
        ranks = [
            (f'<button data-rank="{r.rank}">{r.rank}</button>', escape(r.stage), seconds_text(r.seconds))
            for r in fleet.slow_ranks
        ]
        out.append(f"<section><h2>Slow ranks</h2>{_table(RANK_COLUMNS, ranks)}</section>\n")
    if fleet.slow_steps:
        steps = [
            (f'<button data-step="{s.step}">{s.step}</button>', seconds_text(s.seconds))
            for s in fleet.slow_steps
        ]
        out.append(f"<section><h2>Slow steps</h2>{_table(STEP_COLUMNS, steps)}</section>\n")
    step = sum(fleet.ledger().values())
    parts = [
        (escape(s), seconds_text(v), f"{v / step:.1%}")
        for s, v in sorted(fleet.ledger().items(), key=lambda item: -item[1])
        if v > 0
    ]
    return "".join(out) + f"<section><h2>A mean step</h2>{_table(LEDGER_COLUMNS, parts)}</section>\n"


def fleet_page(fleet: Fleet, title: str) -> str:
    """One file that fetches nothing; its size hardly grows beyond a few thousand ranks or steps."""
    data = {
        **heat_cells(fleet),
        "ranks": fleet.ranks.tolist(),
        "steps": fleet.steps.tolist(),
        "step_s": [round(s / 1e6, 6) for s in fleet.step_us.tolist()],
    }
    first, *more = fleet_lines(fleet)
    rest = "".join(f"<p>{escape(line)}</p>" for line in more)
    cell = (
        f"One cell is {plural(data['rank_block'], 'rank')} and {plural(data['step_block'], 'step')}"
        if data["rank_block"] * data["step_block"] > 1
        else "One cell is one rank in one step"
    )
    body = (
        f"<section><h2>{escape(first)}</h2>{rest}</section>\n"
        "<section><h2>Ranks and steps</h2>"
        f'<p class="note">{cell}: how far its time, without waiting for others, was from the median rank.'
        " Orange to red is slower, blue is faster; of cells that share a pixel the slowest is shown."
        " Scroll to zoom, drag to move.</p>"
        '<div class="controls"><button id="in" aria-label="zoom in">+</button>'
        '<button id="out" aria-label="zoom out">&minus;</button><button id="all">all</button></div>'
        '<p class="note">time of a step</p>'
        '<canvas id="trend" role="img" aria-label="the time of each step"></canvas>'
        '<canvas id="heat" tabindex="0" role="img"'
        ' aria-label="heat map of ranks and steps; keys: + - and arrows"></canvas></section>\n'
        f"{_sections(fleet)}"
        '<div id="tip" hidden></div>\n'
        f'<script type="application/json" id="fleet-data">{json.dumps(data)}</script>\n'
    )
    script = (resources.files("dftracer.report") / "page_fleet.js").read_text(encoding="utf-8")
    return page(title, body, script)
