"""Check what docs/comparison.md says of other code: ``python -m tests.peers.compare``.

Nothing is fetched: a claim about a repository is checked against a checkout that you name, and
listed as not run without one. The exit status is 1 when a claim does not come out as stated.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.peers.claims import Peer
from tests.peers.flower import FLOWER
from tests.peers.msrflute import MSRFLUTE
from tests.peers.pfl_research import PFL_RESEARCH
from tests.peers.projunit import PROJUNIT

PEERS = (PFL_RESEARCH, PROJUNIT, MSRFLUTE, FLOWER)


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    for peer in PEERS:
        folder = options.get(peer.option)
        if peer.checkout and folder and not (folder / peer.checkout.file).is_file():
            parser.error(
                f"--{peer.option}: {folder} has no {peer.checkout.file}; "
                f"get it with: {peer.checkout.commands(peer.option)}"
            )
    rows = []
    for peer in PEERS:
        for row in _rows(peer, options.get(peer.option)):
            rows.append(row)
            if not options["json"]:
                print(_line(row), flush=True)
    report = {"versions": _versions(), "claims": rows}
    print(json.dumps(report, indent=2) if options["json"] else _text(report["versions"]))
    return int(any(row["verdict"] == "not as stated" for row in rows))


def _parser() -> argparse.ArgumentParser:
    checkouts = [(peer, peer.checkout) for peer in PEERS if peer.checkout]
    parser = argparse.ArgumentParser(
        prog="python -m tests.peers.compare",
        description=__doc__,
        epilog="The checkouts:\n"
        + "\n".join(f"  {checkout.commands(peer.option)}" for peer, checkout in checkouts),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for peer, checkout in checkouts:
        parser.add_argument(
            f"--{peer.option}",
            type=Path,
            metavar="DIR",
            help=f"a checkout of {peer.name} at {checkout.commit[:7]}",
        )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _rows(peer: Peer, folder: Path | None) -> Iterator[dict[str, str]]:
    """Yield a line of the table after another, each with what was found."""
    with _quiet():
        run = peer.checkout is None or folder is not None
        loaded = peer.load(folder) if run else None
        for claim in peer.claims:
            row = {"code": peer.name, "call": claim.call, "stated": claim.outcome}
            row |= {"right": claim.right, "verdict": "not run"}
            if run:
                theirs, ours = claim.theirs(loaded), claim.ours()
                as_stated = theirs.as_stated and ours.as_stated
                row |= {"found": theirs.text, "flwr-sdp": ours.text}
                row["verdict"] = "as stated" if as_stated else "not as stated"
            elif peer.checkout:
                row["get"] = peer.checkout.commands(peer.option)
            yield row


def _line(row: dict[str, str]) -> str:
    parts = [f"{row['verdict']}: {row['code']}: {row['call']}"]
    if "found" in row:
        parts += [row["found"], f"right: {row['right']}", f"flwr-sdp: {row['flwr-sdp']}"]
    else:
        parts.append(row["get"])
    return " | ".join(parts).replace("`", "")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the logs and warnings of other code out of the table."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("flwr-sdp", "flwr", "numpy", "scipy", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _text(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in versions.items())


if __name__ == "__main__":
    sys.exit(main())
