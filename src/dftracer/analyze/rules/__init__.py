"""RULES: what a job says about itself. `bound` finds what limits it, the others return findings.

A rule takes a `finding.JudgingContext` and yields findings; each module lists its own in `RULES`.
"""
