"""python -m tests.mutants: plants each mistake of the table in a copy of the tree, and says which ones no test sees."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.mutants.runner import KILLED, Runner, listed_files
from tests.mutants.table import ROOT, Mutant, read_table


def main(arguments: list[str] | None = None) -> int:
    """Prints a line for each row as it ends, and those that were not killed again at the end; 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition(": ")[2])
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows, or kinds of rows; all if none is named")
    parser.add_argument("--sample", type=int, metavar="N", help="only N rows, drawn by chance")
    parser.add_argument("--seed", type=int, default=0, help="what --sample draws with (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="how many rows run at a time (default: 1)")
    parser.add_argument("--whole", action="store_true", help="run all of `make test` for each row")
    options = parser.parse_args(arguments)
    rows = _chosen(read_table(), options, parser)

    not_killed = []
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        runner = Runner(ROOT, listed_files(ROOT), Path(folder))
        with ThreadPoolExecutor(max_workers=options.jobs) as pool:
            try:
                if not options.whole:
                    tests = sorted({row.test for row in rows})
                    print(f"Running {len(tests)} tests without a mistake first.", flush=True)
                    shares = [tests[n :: options.jobs] for n in range(options.jobs)]
                    list(pool.map(runner.prove_unchanged, shares))
                futures = [pool.submit(runner.judge, row, whole=options.whole) for row in rows]
                for number, future in enumerate(as_completed(futures), start=1):
                    verdict = future.result()
                    row = verdict.mutant
                    line = f"{verdict.outcome:<8} {verdict.seconds:6.1f} s  {row.kind:<12} {row.name}"
                    line += f"\n    {verdict.reason}" if verdict.reason else ""
                    print(f"{number:3}/{len(rows)}  {line}", flush=True)
                    if verdict.outcome != KILLED:
                        not_killed.append(f"{verdict.outcome:<8} {row.name}: {row.file}, {row.test}")
            except BaseException:
                runner.stop()
                pool.shutdown(cancel_futures=True)
                raise
    print(f"{len(rows) - len(not_killed)} of {len(rows)} planted mistakes are seen.", *not_killed, sep="\n")
    return 1 if not_killed else 0


def _chosen(table: list[Mutant], options: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Mutant]:
    unknown = set(options.names) - {row.name for row in table} - {row.kind for row in table}
    if unknown:
        parser.error(f"no row and no kind of the table: {', '.join(sorted(unknown))}")
    if options.jobs < 1:
        parser.error(f"--jobs takes a number from 1, got {options.jobs}")
    rows = [row for row in table if not options.names or {row.name, row.kind} & set(options.names)]
    if options.sample is None:
        return rows
    if not 1 <= options.sample <= len(rows):
        parser.error(f"--sample takes a number from 1 to {len(rows)}, got {options.sample}")
    return random.Random(options.seed).sample(rows, options.sample)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
