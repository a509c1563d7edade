"""How far two medians can be trusted, from the spread of the steps behind them.

Steps are neither independent nor well-behaved: a slow one is often followed by another, tails are heavy,
machines warm up. So a run is cut into a few stretches, and the spread of their medians says how certain the
run's median is; effects that last longer than a stretch (autocorrelation, drift) make it less certain.
With loader workers a long wait is followed by batches that are ready: single steps then say little, and what
is stable is the mean of as many steps as make up for each other (`block_length`).
Everything is computed, nothing is random: the same runs always give the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MIN_STEPS = 8  # below this, nothing is said about differences
_LONGEST_BLOCK = 64
_EXTREMES = 0.02  # at each end of the steps: outliers say nothing about a period
_STEADIER = 0.4  # blocks are used if they vary by less than this share of what independent steps would
_STRETCHES = 12
_MIN_STRETCHES = 4
_STEPS_PER_STRETCH = 3
_BOUNDING_STRETCHES = 8
_BEYOND = 1.25
_MAD_TO_SIGMA = 1.4826  # of a normal distribution
_OUTLIER = 3.0
_MAX_CORRELATED = 0.99
_MAX_CORRELATED_STRETCHES = 0.8
# The medians of the first and the last third of n steps, scaled to a whole run's drift (3/2), vary by
# (3/2)^2 * 2 * 3 times the variance of the run's median without any drift.
_DRIFT_BY_NOISE = 13.5
_DRIFT_WEIGHT = 1 / 9
# Equal runs, one after another on a quiet machine, differ by this much (a standard deviation) for reasons
# that none of their steps shows: where memory lies, clocks, which core. Several runs a side show their own.
BETWEEN_RUNS = 0.01
_FARTHEST_RUN = 4.0
# And beside other work by so much of what they waited for a CPU: equal runs that waited 33 to 62 % of their
# time differed by 20 % (a standard deviation).
_OF_WAITING = 0.5
_QUIET = 0.02


@dataclass(frozen=True)
class Center:
    """The location of a series, its uncertainty (a variance), the number of independent pieces behind it, and
    how far it can be from the truth at most: stretches that all lie here bound where their middle can be.
    """

    value: float
    variance: float
    freedom: float
    most: float


@dataclass(frozen=True)
class Change:
    """From a to b; `relative` and `interval` are null if a is 0 and there is no ratio."""

    a: float
    b: float
    difference: float
    interval_s: tuple[float, float] | None  # None: too few steps
    relative: float | None
    interval: tuple[float, float] | None

    @property
    def certain(self) -> bool:
        """Whether the interval excludes no change at all."""
        if self.interval_s is None:
            return False
        low, high = self.interval if self.interval is not None else self.interval_s
        return low > 0 or high < 0


@lru_cache(maxsize=4096)
def t_quantile(freedom: float, alpha: float) -> float:
    """The two-sided quantile of Student's t, by integrating its density over an angle."""
    angle = np.linspace(0.0, np.pi / 2, 20_001)
    density = np.cos(angle) ** (freedom - 1)
    upto = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    found = np.interp(1 - alpha, upto / upto[-1], angle)
    return float(np.sqrt(freedom) * np.tan(found))


def block_length(x: Floats) -> int:
    """How many consecutive steps make up for each other; 1 if they do not.

    The variance of the mean of L independent steps is that of a step divided by L. Where it is much smaller,
    long steps are followed by short ones, as with W workers that each bring a batch in turn.
    """
    # Long blocks are few, and few blocks resemble each other by chance.
    longest = min(_LONGEST_BLOCK, x.size // MIN_STEPS, max(MIN_STEPS, x.size // 16))
    if longest < 2:
        return 1
    clipped = np.clip(x, *np.quantile(x, (_EXTREMES, 1 - _EXTREMES)))
    alone = float(np.var(clipped))
    if alone == 0:
        return 1
    lengths = np.arange(1, longest + 1)
    left = np.array([length * float(np.var(blocks(clipped, int(length)))) / alone for length in lengths])
    # With n blocks the variance is uncertain by sqrt(2 / n).
    left *= 1 + 2 * np.sqrt(2 / (x.size // lengths))
    steadier = np.flatnonzero(left < _STEADIER)
    return int(steadier[0]) + 1 if steadier.size else 1


def blocks(x: Floats, length: int) -> Floats:
    """The means of so many consecutive steps each, without the first ones that do not fill a block."""
    return x if length == 1 else x[x.size % length :].reshape(-1, length).mean(axis=1)


def of_runs(centers: list[Center], spread: float, freedom: float) -> Center:
    """Several runs as one; `spread`: the variance between runs of a side, from all sides together."""
    n = len(centers)
    within = sum(c.variance for c in centers) / n
    return Center(sum(c.value for c in centers) / n, max(spread, within) / n, max(freedom, 1.0), float("inf"))


def of_one_run(center: Center, waited: float = 0.0) -> Center:
    """What is known of a program that ran once, rather than of that run.

    `waited` is the share of its time in which the machine let it wait for a CPU.
    """
    relative = BETWEEN_RUNS + _OF_WAITING * max(waited - _QUIET, 0.0)
    between = (relative * center.value) ** 2
    if between == 0:
        return center
    variance = center.variance + between
    freedom = center.freedom * (variance / center.variance) ** 2 if center.variance > 0 else float("inf")
    most = float(np.hypot(center.most, _FARTHEST_RUN * relative * center.value))
    return Center(center.value, variance, min(freedom, 1e6), most)


def median_of(x: Floats) -> Center:
    """The median of a series in chronological order."""
    middle = float(np.median(x))
    mad = _MAD_TO_SIGMA * float(np.median(np.abs(x - middle)))
    independent = _independent(x, middle, mad)
    by_steps = np.pi / 2 * mad**2 / max(independent, 1.0)
    pieces = _pieces(x)
    medians = np.array([float(np.median(p)) for p in pieces])
    by_stretches = _spread(medians)
    third = max(1, x.size // 3)
    drift = 1.5 * float(np.median(x[-third:]) - np.median(x[:third]))
    by_drift = max(drift**2 - _DRIFT_BY_NOISE * by_steps, 0.0) * _DRIFT_WEIGHT
    freedom = float(np.clip(independent - 1, 1, len(pieces) - 1))
    return Center(middle, max(by_steps, by_stretches) + by_drift, freedom, _most(medians))


def mean_of(x: Floats) -> Center:
    """The mean, for what happens in only a few of the steps."""
    pieces = _pieces(x)
    means = np.array([float(np.mean(p)) for p in pieces])
    return Center(float(np.mean(x)), _spread(means), float(len(pieces) - 1), _most(means))


def _pieces(x: Floats) -> list[Floats]:
    n = int(np.clip(x.size // _STEPS_PER_STRETCH, _MIN_STRETCHES, _STRETCHES))
    return np.array_split(x, n)


def _most(values: Floats) -> float:
    """Somewhat more than the range of the stretches; with few stretches the range says nothing."""
    return _BEYOND * float(np.ptp(values)) if values.size >= _BOUNDING_STRETCHES else float("inf")


def _spread(values: Floats) -> float:
    """The variance of the mean of stretches, larger if neighbours resemble each other."""
    n = values.size
    off = values - values.mean()
    square = float(off @ off)
    if square == 0:
        return 0.0
    alike = float(np.clip(off[1:] @ off[:-1] / square + 1 / n, 0.0, _MAX_CORRELATED_STRETCHES))
    return square / (n - 1) / n * (1 + alike) / (1 - alike)


def _independent(x: Floats, middle: float, mad: float) -> float:
    """How many independent steps the series is worth, given the correlation of neighbours."""
    n = x.size
    if mad == 0:
        return float(n)
    z = np.clip((x - middle) / mad, -_OUTLIER, _OUTLIER)
    z = z - z.mean()
    alike = float(z[1:] @ z[:-1] / max(float(z @ z), 1e-12))
    alike += (1 + 3 * alike) / n  # short series make it look smaller
    alike = float(np.clip(alike, 0.0, _MAX_CORRELATED))
    return n * (1 - alike) / (1 + alike)


def change_of(a: Center | None, b: Center | None, values: tuple[float, float], alpha: float) -> Change:
    """The change with its interval, wrong in at most `alpha` of all cases; None where steps are too few."""
    x, y = values
    relative = y / x - 1 if x > 0 else (0.0 if y == 0 else None)
    if a is None or b is None:
        return Change(x, y, y - x, None, relative, None)
    low, high = _interval(y - x, a, b, (1.0, 1.0), alpha)
    if x > 0 and y > 0:
        # On a logarithmic scale, so that b to a is the inverse of a to b.
        ends = _interval(float(np.log(y / x)), a, b, (1 / x, 1 / y), alpha)
        interval: tuple[float, float] | None = (_growth(ends[0]), _growth(ends[1]))
    elif x > 0:
        interval = (max(low / x, -1.0), high / x)
    else:
        interval = (0.0, 0.0) if y == 0 else None
    return Change(x, y, y - x, (low, high), relative, interval)


def _growth(log: float) -> float:
    return float(np.expm1(min(log, 700.0)))


def _interval(
    middle: float, a: Center, b: Center, scale: tuple[float, float], alpha: float
) -> tuple[float, float]:
    va, vb = a.variance * scale[0] ** 2, b.variance * scale[1] ** 2
    whole = va + vb
    if whole <= 0:
        return middle, middle
    freedom = whole**2 / (va**2 / a.freedom + vb**2 / b.freedom)  # Welch and Satterthwaite
    reach = t_quantile(round(freedom, 2), alpha) * float(np.sqrt(whole))
    reach = min(reach, float(np.hypot(a.most * scale[0], b.most * scale[1])))
    return middle - reach, middle + reach
