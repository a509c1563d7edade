"""Why a job hangs, or died: evidence from every rank, one verdict."""

from dftracer.postmortem.evidence import Evidence, RankEvidence, gather
from dftracer.postmortem.verdict import Verdict, judge

__all__ = ["Evidence", "RankEvidence", "Verdict", "gather", "judge"]
