"""The command line: see the package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import tests.peers
from tests.peers import record
from tests.peers.child import ROOT
from tests.peers.registry import PEERS
from tests.peers.render import rendered
from tests.peers.runs import Bench, run_peer
from tests.peers.speed import time_all
from tests.peers.subjects import SUBJECTS, prepare, subject_named
from vitdeploy import environment
from vitdeploy.artifacts.files import write_text
from vitdeploy.errors import VitDeployError

PAGE = ROOT / "docs" / "peers.md"


def main(arguments: list[str]) -> None:
    given = _parser().parse_args(arguments)
    if given.command == "table":
        write_text(PAGE, rendered())
        return
    for name in given.model or [key for key in SUBJECTS if key != "vit-base"]:
        subject = subject_named(name, given.calib, given.eval)
        bench = Bench(subject=subject, prepared=prepare(subject, given.work), threads=given.threads)
        if given.command == "time":
            record.write(time_all(bench, batch=given.batch, seconds=given.seconds))
            continue
        for key in given.peer or PEERS:
            if record.read_peer(subject.key, key) is not None and not given.again:
                continue
            done = run_peer(bench, PEERS[key])
            record.write(done)
            sys.stdout.write(f"{subject.key} {key}: {done.error or 'done'}\n")
            sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.peers",
        description=tests.peers.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("table", help="write docs/peers.md")
    run = commands.add_parser("run", help="quantize, judge and build; records there are kept")
    run.add_argument("--peer", action="append", choices=PEERS)
    run.add_argument("--again", action="store_true", help="replace records")
    timing = commands.add_parser("time", help="time the files that `run` left")
    timing.add_argument("--batch", type=int, default=4)
    timing.add_argument("--seconds", type=float, default=240)
    for command in (run, timing):
        command.add_argument("--model", action="append", help=f"{', '.join(SUBJECTS)} or a file")
        command.add_argument("--calib", type=Path, help="images to calibrate a file with")
        command.add_argument("--eval", type=Path, help="images to judge a file on")
        command.add_argument("--work", type=Path, default=ROOT / "artifacts" / "peers")
        command.add_argument("--threads", type=int, default=environment.available_cores())
    return parser


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except VitDeployError as error:
        sys.exit(f"{error}\n{error.hint}")
