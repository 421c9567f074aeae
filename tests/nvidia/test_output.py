"""What compute-sanitizer and ncu print is read right, on any machine."""

from course_utils.nvidia.output import parse_ncu, parse_sanitizer
from tests.helpers.nvidia_output import ADDITION, CLEAN, INLINED, LAUNCH, LDSM, MEMCHECK, NCU, RACECHECK, READ, SECTORS


def test_a_memcheck_finding_names_the_file_and_line_of_the_launch():
    (finding,) = parse_sanitizer(MEMCHECK, "memcheck", LAUNCH)
    assert finding.tool == "memcheck" and finding.message == "Invalid __global__ read of size 4 bytes"
    assert (finding.kernel, finding.file, finding.line) == ("vector_add", LAUNCH.source, ADDITION)
    assert finding.source.startswith("c[i] = a[i] + b[i];")
    assert (finding.block, finding.thread) == ((3, 2, 0), (1, 0, 0))
    assert finding.count == 2  # the same line, by two threads


def test_a_finding_in_an_inlined_function_belongs_to_the_kernel_that_calls_it():
    (finding,) = parse_sanitizer(INLINED, "synccheck")
    assert (finding.kernel, finding.file, finding.line) == ("divergent_barrier", "/home/me/smoke.cu", 16)
    assert finding.message == "Barrier error detected. Divergent thread(s) in block"


def test_a_race_has_two_parties_and_counts_its_hazards():
    first, second = parse_sanitizer(RACECHECK, "racecheck")
    assert first.message == "Race between write access and read or write access"
    assert (first.kernel, first.line, first.other_line, first.count) == ("turn", 12, 13, 900)
    assert (first.block, first.thread) == (None, None)  # racecheck's summary of hazards names no thread
    assert (second.line, second.other_line, second.count) == (None, None, 1)  # compiled without -lineinfo


def test_summaries_and_errors_of_the_cuda_api_are_no_findings():
    api = (
        '========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure"\n'
        "=========     Saved host backtrace up to driver entry point at error\n"
        "=========         Host Frame: [0x3a5f2c] in libcuda.so.1\n"
    )
    assert parse_sanitizer(CLEAN + api, "memcheck", LAUNCH) == []


def test_ncu_rows_come_by_launch_with_plain_numbers():
    assert parse_ncu(NCU) == [
        ("vector_add", {READ: 2304, SECTORS: 64, LDSM: 0}),
        ("turn", {READ: 1500, SECTORS: 1024}),
    ]
