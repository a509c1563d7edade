"""`dftracer validate`."""

from __future__ import annotations

import argparse

from dftracer.cli.common import add_paths, open_trace, print_json
from dftracer.cli.main import EXIT_OK, EXIT_PROBLEMS

HELP = "Check every record of a trace; exit code 1 if anything is wrong."
EXAMPLE = "dftracer validate traces/ && echo complete"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)


def run(args: argparse.Namespace) -> int:
    from dftracer.load.facts import file_facts

    trace = open_trace(args, recover=False)
    rows = [file_facts(p) for p in trace.processes]
    seen = {p.rank for p in trace.processes if p.rank is not None}
    world = max((p.world_size or 0 for p in trace.processes), default=0)
    missing = sorted(set(range(world)) - seen) if seen else []
    bad = [r for r in rows if r["problems"]]
    if args.json:
        print_json({"ok": not bad and not missing, "missing_ranks": missing, "files": rows})
    else:
        for r in bad:
            print(f"{r['file']}: {'; '.join(r['problems'])}")
        if missing:
            print(f"ranks without a trace: {', '.join(map(str, missing))}")
        if not args.quiet:
            records = sum(r["records"] for r in rows)
            print(f"{len(rows)} files, {records} records, {len(bad)} files with problems")
            if bad:
                print(
                    "`dftracer repair` makes clean copies; events that were never written cannot be"
                    " brought back."
                )
    return EXIT_PROBLEMS if bad or missing else EXIT_OK
