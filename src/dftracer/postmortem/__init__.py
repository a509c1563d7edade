"""Why a job hangs, or died: evidence from every rank, one verdict."""

from dftracer.postmortem.evidence import Evidence as Evidence
from dftracer.postmortem.evidence import RankEvidence as RankEvidence
from dftracer.postmortem.evidence import gather as gather
from dftracer.postmortem.verdict import Verdict as Verdict
from dftracer.postmortem.verdict import judge as judge
