"""What a compiled library says of itself is read once, and again when it is read in another way."""

import pytest

from course_utils.cuda import RawModule
from course_utils.emulator import library_tables
from course_utils.emulator.library_tables import code_ranges, symbols

KERNEL = """
__device__ float offset;
__global__ void add(float* x) {
    x[threadIdx.x] += offset;
}
"""


@pytest.fixture
def library(tmp_path):
    """A copy of a compiled kernel, which nobody has looked into."""
    module = RawModule(code=KERNEL)
    module.compile()
    path = tmp_path / "kernels.so"
    path.write_bytes(module._emulated._first.path.read_bytes())
    return path


def read_anew(library):
    """As another process would: nothing is remembered here."""
    symbols.cache_clear()
    code_ranges.cache_clear()
    return symbols(library), code_ranges(library)


def json_files(library):
    return sorted(library.parent.glob("*.json"))


def test_what_is_kept_beside_a_library_is_what_was_read(library, monkeypatch):
    first = read_anew(library)
    assert first[0]["offset"].size == 4 and any(row.line == 4 for row in first[1][0])
    assert len(json_files(library)) == 2 and len(list(library.parent.iterdir())) == 3
    monkeypatch.setattr(library_tables, "ELFFile", None)  # would fail
    assert read_anew(library) == first


def test_it_is_read_again_when_this_file_reads_it_in_another_way(library, monkeypatch):
    read_anew(library)
    for file in json_files(library):
        file.write_text("[[], []]", encoding="utf-8")
    monkeypatch.setattr(library_tables, "_digest", lambda reader: "another")
    assert any(row.line == 4 for row in read_anew(library)[1][0])


def test_it_is_read_again_when_the_file_is_damaged(library):
    first = read_anew(library)
    for file in json_files(library):
        file.write_text("[[1, 2", encoding="utf-8")
    assert read_anew(library) == first


def test_a_folder_that_cannot_be_written_does_no_harm(library, monkeypatch):
    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(library_tables.tempfile, "TemporaryDirectory", full)
    assert read_anew(library)[0]["offset"].size == 4 and not json_files(library)
