"""`dftracer ship`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dftracer._text import bytes_text, plural
from dftracer.cli.main import EXIT_OK, EXIT_PROBLEMS, CommandError
from dftracer.cli.showing import print_json

if TYPE_CHECKING:
    from dftracer.cli.shipping import Shipper

HELP = "Send traces to a store (s3://, gs:// ...) and delete them here once it has confirmed them."
EXAMPLE = """\
dftracer ship traces/20260115-174012-3fa2b1c4 s3://bucket/job
dftracer ship --keep traces/ s3://bucket/job"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="a directory with traces")
    parser.add_argument("url", metavar="URL", help="where to send them, e.g. s3://bucket/job")
    parser.add_argument("--keep", action="store_true", help="keep the local files")


def run(args: argparse.Namespace) -> int:
    from dftracer.cli.shipping import Shipper
    from dftracer.load.files import NoTraces
    from dftracer.load.remote import is_url

    folder = Path(args.folder)
    if not folder.is_dir():
        raise CommandError(f"{folder} is not a directory")
    if not is_url(args.url):
        raise CommandError(f"{args.url} is not a URL like s3://bucket/job")
    shipper = Shipper(folder, args.url)
    try:
        shipper.open()
    except NoTraces as e:
        raise CommandError(str(e)) from None
    problem = shipper.finish(args.keep)
    if args.json:
        left = [str(path) for path in shipper.left]
        print_json(
            {
                "url": shipper.url,
                "files": shipper.sent,
                "bytes": shipper.sent_bytes,
                "failures": shipper.failures,
                "left": left,
            }
        )
    elif not args.quiet:
        print(told(shipper, problem))
    return EXIT_PROBLEMS if shipper.left else EXIT_OK


def told(shipper: Shipper, problem: Exception | None) -> str:
    """What is in the store now, and what is not."""
    left = shipper.left
    text = f"{plural(shipper.sent, 'file')} in {shipper.url}, {bytes_text(shipper.sent_bytes)} sent"
    if shipper.failures:
        text += f", {plural(shipper.failures, 'request')} failed"
    if problem is not None:
        text += f"; the store does not answer ({type(problem).__name__}: {problem})"
    if left:
        stay = "stays" if len(left) == 1 else "stay"
        text += (
            f"; {plural(len(left), 'file')} {stay} here: dftracer ship {shipper.directory} {shipper.url}"
            if problem is not None
            else f"; {plural(len(left), 'file')} {stay} here, because a process may be writing"
        )
    return text
