"""python -m course_utils.site build | badges, for `make site` and `make badges`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from course_utils.site import badges, build


def main() -> int:
    """Reads the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m course_utils.site", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    site = commands.add_parser("build", help="the chapters as a static site, in build/site")
    site.add_argument("--repository", help="owner/name on GitHub, for badges that open a chapter elsewhere")
    site.add_argument("--folder", type=Path, default=build.ROOT / "build", help="where the site is built")
    links = commands.add_parser("badges", help="badges into README and chapters, with a cell for Colab and Kaggle")
    links.add_argument("--repository", required=True, help="owner/name on GitHub")
    links.add_argument("--root", type=Path, default=build.ROOT, help="the checkout whose chapters get them")
    arguments = parser.parse_args()
    if arguments.repository or arguments.command == "badges":
        try:
            badges.check_repository(arguments.repository)
        except ValueError as error:
            parser.error(str(error))
    if arguments.command == "build":
        return build.main(arguments.repository or None, arguments.folder.resolve())
    return badges.main(arguments.repository, arguments.root)


if __name__ == "__main__":
    sys.exit(main())
