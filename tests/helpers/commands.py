"""The commands of the course, as a person types them."""

import argparse

from course_utils.commands import bench


def bench_command(*words: object) -> int:
    """`python -m course_utils bench WORDS`: the exit status."""
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.run(parser.parse_args([str(word) for word in words]))
