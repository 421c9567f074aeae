"""Puzzles: what a chapter's cell gives is the kernel with its hole, its solution is right, and mistakes have names."""

import re
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
import torch
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from course_utils.course import CHAPTERS
from course_utils.grading import replay, runner
from course_utils.puzzles import magic
from course_utils.puzzles.attempt import NOT_YET, attempt, page, run_of
from course_utils.puzzles.cases import OWN_ROW_OF_V
from course_utils.puzzles.puzzle import PUZZLES, STUB, find_puzzle, puzzle_ids
from course_utils.puzzles.wrong_lines import known_mistakes

ROOT = Path(__file__).resolve().parents[2]

# Lines that a learner might write, besides those of the known mistakes: how many parts are right then, and the name of
# what is not.
SINK = "const float m_new = fmaxf(m, sink * LOG2_E), rescale = exp2f(m - m_new);\n"
RING = "const int b = t % BUFFERS, parity = t / BUFFERS % 2;\n"
OUT_OF_TURN = "a tile is read before its bytes have come, or after its place was given back"
WRONG = {
    "00_start_here/guard": {
        "if (i <= n) c[i] = a[i] + b[i];": (1, "an array is read or written past its end"),
        "if (i < n - 1) c[i] = a[i] + b[i];": (0, "c is never written in places"),
        "if (i < n) c[i] = a[i] - b[i];": (0, "c is wrong"),
    },
    "00_start_here/scores_of_one_query": {
        "const int j = threadIdx.x; if (j >= L) return; float sum = 0;\n"
        "for (int c = 0; c < d; c++) sum += q[c] * K[j * d + c];\ns[j] = scale * sum;": (
            1,
            "several blocks write the same memory",
        ),
        "const int j = blockIdx.x * 64 + threadIdx.x; if (j >= L) return; float sum = 0;\n"
        "for (int c = 0; c < d; c++) sum += q[c] * K[j * d + c];\ns[j] = scale * sum;": (
            1,
            "several blocks write the same memory",
        ),
        "const int j = blockIdx.x * blockDim.x + threadIdx.x; if (j >= L) return; float sum;\n"
        "for (int c = 0; c < d; c++) sum += q[c] * K[j * d + c];\ns[j] = scale * sum;": (
            1,  # one block's sums begin at 0 by luck, and its successor's where they ended
            "sum is used before its value is set (line 5)",
        ),
        "const int j = blockIdx.x * blockDim.x + threadIdx.x; if (j < L) { float s = 0;\n"
        "for (int c = 0; c < d; c++) s += q[c] * K[j * d + c];\ns *= scale; }": (
            0,
            "a variable s hides the parameter s (line 4)",
        ),
    },
    "00_start_here/attention": {
        "for (int j = 0; j < L; j++) {\nconst float p = expf(scale * dot(Q, K + j * d, d) - m);\nl += p;\n"
        "for (int c = 0; c < d; c++) O[c] += p * V[c];\n}": (0, "O is wrong"),
    },
    "02_flash_attention_minimal/merge": {
        "const float a2 = expf(m2[i] - m1[i]);\nconst float l = l1[i] + a2 * l2[i];\n"
        "for (int c = 0; c < d; c++) O[c] = (O1[c] + a2 * O2[c]) / l;": (1, None),  # overflows, and by −∞ is NaN
    },
    "02_flash_attention_minimal/rescale": {
        "const float p = expf(s);\nl += p;\nfor (int c = 0; c < D; c++) O_i[c] += p * V[j * D + c];": (
            2,
            None,
        ),  # right until exp overflows
    },
    "02_flash_attention_minimal/score_gradient": {
        "float delta = 0;\nfor (int c = 0; c < D; c++) delta += dO[j * D + c] * O[j * D + c];\n"
        "dS[at] = expf(S[at] - LSE[i]) * (dP[at] - delta);": (0, None),  # the row of another query
    },
    "03_flash_attention_v2/swizzle": {
        "tile[8 * row + chunk] = in[e];\n__syncthreads();\nout[e] = tile[8 * out_row + out_chunk];": (
            1,
            "the tile is read with bank conflicts",
        ),
        "tile[8 * row + chunk] = in[e];\n__syncthreads();\nout[e] = tile[8 * out_row + (out_chunk ^ out_row % 8)];": (
            0,
            "the swizzle stands on one side only",
        ),
        "tile[8 * row + (chunk ^ row % 8)] = in[e];\nout[e] = tile[8 * out_row + (out_chunk ^ out_row % 8)];": (
            0,
            "a chunk is read before all have written",
        ),
        "out[e] = in[8 * out_row + out_chunk];": (1, "nothing goes through shared memory"),
    },
    "03_flash_attention_v2/sinks": {
        f"{SINK}m = m_new, l = l * rescale + exp2f(sink * LOG2_E - m_new);\n"
        "for (int c = 0; c < D; c++) O_i[c] = O_i[c] * rescale + exp2f(sink * LOG2_E - m_new);": (
            0,
            "the sink is added to O",
        ),
        "const float m_new = fmaxf(m, sink * LOG2_E);\nm = m_new, l += exp2f(sink * LOG2_E - m_new);": (
            0,
            "nothing is rescaled",
        ),
        "l += 0 * sink;": (0, "the sink is left out"),
    },
    "04_sparse_patterns/skip_tile": {
        "first = max(0, i0 - window) / B_C;\nlast = (min(i0 + B_R, L) - 1) / B_C;": (
            1,
            "some blocks load a tile that none of their queries sees",
        ),
        "last = (min(i0 + B_R, L) - 1) / B_C;": (1, "the tiles before the window are not skipped"),
        "first = (i0 - window + 1) / B_C;\nlast = (min(i0 + B_R, L) - 1) / B_C;": (
            0,
            "a tile before the first one is loaded",
        ),
    },
    "04_sparse_patterns/packed": {
        "for (int s = 0; s < n; s++) if (cu_seq_q[s] <= i && i < cu_seq_q[s + 1])\n"
        "first = cu_seq_k[s], end = 2 * cu_seq_k[s + 1];": (0, "a row is read that the batch does not have"),
    },
    "05_deepseek_sparse/gather": {
        "const int s = indices[i];\nconst bool valid = 0 <= s && s < T;\nconst int row = valid ? s : 0;\n"
        "add_key(valid ? scale * dot(Q, K + row * d, d) : 0, V + row * d, m, l, O, d);": (
            1,
            "an index that is no key counts as a score of 0",
        ),
        "const int s = indices[i];\nif (s < 0) break;\n"
        "if (s < T) add_key(scale * dot(Q, K + s * d, d), V + s * d, m, l, O, d);": (
            1,
            "the list ends at the first index that is no key",
        ),
        "const int s = indices[i];\nif (s < 0) continue;\n"
        "add_key(scale * dot(Q, K + s * d, d), V + s * d, m, l, O, d);": (
            2,
            "a row is read that K or V does not have",
        ),
        "const int s = indices[i];\nadd_key(scale * dot(Q, K + s * d, d), V + s * d, m, l, O, d);": (
            1,
            "a row is read that K or V does not have",
        ),
    },
    "06_serving/pieces": {
        "for (; b <= B; b++) {\nconst int parts = (seq_lens[b] + size - 1) / size;\nif (part < parts) break;\n"
        "part -= parts;\n}": (0, "a length is read that seq_lens does not have"),
    },
    "06_serving/page_row": {
        "row = block_table[b * max_pages + j] * page_size;": (1, "an entry or a row is read that there is not"),
    },
    "07_hopper/panels": {
        "out[chunk / 8 * 64 * 8 + row * 8 + (chunk % 8 ^ row % 8)] = in[e];": (1, "out is written past its end"),
        "out[chunk / 8 * rows * 8 + row * 8 + (chunk % 8 ^ row)] = in[e];": (0, "out is written past its end"),
        "if (chunk < 8) out[row * 8 + (chunk ^ row % 8)] = in[e];": (0, "out is never written in places"),
    },
    "07_hopper/ring": {
        f"{RING}sum += tile[b][threadIdx.x];\narrive(&empty[b]);": (0, OUT_OF_TURN),
        f"{RING}wait_for(&full[b], parity);\narrive(&empty[b]);\nsum += tile[b][threadIdx.x];": (1, OUT_OF_TURN),
        f"{RING}wait_for(&full[b], 0);\nsum += tile[b][threadIdx.x];\narrive(&empty[b]);": (1, OUT_OF_TURN),
        f"{RING}wait_for(&full[b], parity);\nsum += tile[b][threadIdx.x];": (1, "somebody waits for ever"),
        f"{RING}wait_for(&full[b], parity);\nsum += tile[b][threadIdx.x];\nif (threadIdx.x == 0) arrive(&empty[b]);": (
            1,
            "somebody waits for ever",
        ),
        f"{RING}wait_for(&full[b], parity ^ 1);\nsum += tile[b][threadIdx.x];\narrive(&empty[b]);": (0, OUT_OF_TURN),
        "const int b = t % BUFFERS, parity = t % 2;\nwait_for(&full[b], parity);\nsum += tile[b][threadIdx.x];\n"
        "arrive(&empty[b]);": (0, OUT_OF_TURN),
        "const int b = t % 2, parity = t / 2 % 2;\nwait_for(&full[b], parity);\nsum += tile[b][threadIdx.x];\n"
        "arrive(&empty[b]);": (0, "somebody waits for ever"),
    },
    "08_choosing/shared_heads": {
        "K += h * T * d, V += h * T * d;": (0, "a head is read that K or V does not have"),
    },
}


# With the lines of a known mistake no part is right, but for these.
RIGHT_PARTS = {
    ("00_start_here/attention", "the maximum is not subtracted"): 2,  # right until exp overflows
    ("01_attention_basics/safe_softmax", "the maximum is not subtracted"): 2,
    ("01_attention_basics/safe_softmax", "a row without keys gives NaN"): 2,
    ("01_attention_basics/causal_mask", "queries are counted from the first key"): 1,
    ("01_attention_basics/causal_mask", "L_q and L_k have changed places"): 1,
    ("03_flash_attention_v2/sinks", "a large sink overflows"): 1,
    ("04_sparse_patterns/packed", "the rows of the queries are taken for rows of keys"): 1,
    ("04_sparse_patterns/packed", "the last key is found by the position in the batch"): 1,
    ("04_sparse_patterns/packed", "queries are counted from the first key"): 1,
    ("05_deepseek_sparse/relu_before_sum", "the weight is inside of the ReLU"): 1,
    ("05_deepseek_sparse/gather", "an index that is no key counts as a score of 0"): 1,
    ("05_deepseek_sparse/gather", "an index that is no key is taken for a key"): 1,
    ("05_deepseek_sparse/gather", "the list ends at the first index that is no key"): 1,
    ("06_serving/pieces", "a short last piece is lost"): 1,
    ("06_serving/page_row", "the number of the page is taken for its first row"): 1,
    ("06_serving/page_row", "all keys of a page are its first one"): 1,
}


def cells_of_puzzles(slug):
    """Of a notebook."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{slug}.ipynb", as_version=4)
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return [source.split("\n", 1) for source in sources if source.startswith("%%puzzle")]


@pytest.mark.parametrize("slug", [chapter.slug for chapter in CHAPTERS])
def test_the_cells_of_a_notebook_hold_its_puzzles_as_they_are_given(slug):
    found = cells_of_puzzles(slug)
    assert [first for first, _ in found] == [f"%%puzzle {puzzle_id}" for puzzle_id in puzzle_ids(slug)]
    for first, body in found:
        assert body.strip("\n") == find_puzzle(first.split()[1]).given.strip("\n")


def test_the_chapters_modules_hold_the_puzzles_that_are_listed():
    assert PUZZLES.keys() <= {chapter.slug for chapter in CHAPTERS}
    files = {f"{path.parts[-3]}/{path.stem}" for path in (ROOT / "kernels").glob("*/puzzles/*.cu")}
    assert files == set(puzzle_ids()) and len(puzzle_ids()) == len(files)
    with pytest.raises(LookupError, match="there is no puzzle '00_start_here/guards'; there are: 00_start_here/guard,"):
        find_puzzle("00_start_here/guards")


MORE_SEEDS = pytest.mark.exhaustive("two more seeds: `make test` has one, and a fresh one in each chapter that it runs")


@pytest.mark.parametrize("puzzle_id", puzzle_ids())
def test_a_puzzle_has_a_hole_of_a_few_lines(puzzle_id):
    puzzle = find_puzzle(puzzle_id)
    assert 2 <= len(puzzle.lines.splitlines()) <= 5
    assert puzzle.stub in (STUB, "c[i] = a[i] + b[i];") and puzzle.hint


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=MORE_SEEDS) for seed in (1, 2))])
@pytest.mark.parametrize("puzzle_id", puzzle_ids())
def test_a_puzzles_solution_is_right_and_the_kernel_that_is_given_is_not(puzzle_id, seed):
    puzzle = find_puzzle(puzzle_id)
    result = attempt(puzzle, puzzle.solved, seed=seed, device="cpu")
    assert result.full, str(result)
    assert not attempt(puzzle, puzzle.given, seed=seed, device="cpu").full


@pytest.mark.parametrize("puzzle_id", puzzle_ids())
def test_wrong_lines_lose_their_parts_and_have_a_name(puzzle_id, request):
    """Some of each puzzle's in `make test`; the names are given as an exercise's, which tests/grading has."""
    puzzle, wrong = find_puzzle(puzzle_id), list(WRONG.get(puzzle_id, {}).items())
    names = {lines: one.said.name for one in puzzle.mistakes for lines in one.lines}
    known = [(lines, (RIGHT_PARTS.get((puzzle_id, name), 0), name)) for lines, name in names.items()]
    exhaustive = request.config.getoption("--exhaustive")
    for lines, (right, name) in [*wrong, *known] if exhaustive else [*wrong[:4:3], *known[:4:3]]:
        result = attempt(puzzle, puzzle.filled(lines), seed=1, device="cpu")
        assert sum(part.earned for part in result.parts) == right, str(result)
        assert name is None or name in result.diagnosis.name, str(result)


def test_lines_that_leave_an_array_explain_nothing():
    """The query's row of V in place of the key's: where there are more queries than keys, there is no such row."""
    puzzle = find_puzzle("02_flash_attention_minimal/rescale")
    own_row = next(one for one in known_mistakes(puzzle) if one.diagnosis.name == OWN_ROW_OF_V)
    few, many, _ = puzzle.task.cases(torch.Generator().manual_seed(0), {})
    assert own_row.simulate(few)["O"].isfinite().all() and own_row.simulate(many) is None


def test_a_message_names_the_line_of_the_cell():
    puzzle = find_puzzle("00_start_here/guard")
    result = attempt(puzzle, puzzle.given.replace("b[i];", "b[i]"), seed=0, device="cpu")
    assert 'guard.cu(4): error: expected a ";" at the end of this line' in result.diagnosis.detail, str(result)


def test_a_compile_error_quotes_its_line():
    solved = find_puzzle("00_start_here/guard").solved
    said = attempt(
        find_puzzle("00_start_here/guard"), solved.replace("c[i] = a[i]", "c[i] = x + a[i]")
    ).diagnosis.detail
    assert 'identifier "x" is undefined' in said
    line = int(re.search(r"\((\d+)\)", said)[1])
    assert said.endswith(f"\n{line:6d} | c[i] = x + a[i] + b[i];")


def test_a_variable_without_a_value_is_named_and_what_a_kernel_prints_is_shown():
    wrong = 'float z;\nif (i == 0) printf("<%d>\\n", n);\nif (i < n) c[i] = z + 1 + a[i] + b[i];'
    puzzle = find_puzzle("00_start_here/guard")
    result = attempt(puzzle, puzzle.given.replace(puzzle.stub, wrong))
    assert re.fullmatch(r"z is used before its value is set \(line \d+\)", result.diagnosis.name)
    case, printed = result.printed.split("\n")
    assert case == f"n = {printed[1:-1]}:"
    assert "The kernel printed" in page(puzzle, result) and "&lt;" in page(puzzle, result)
    lucky = attempt(puzzle, puzzle.given.replace(puzzle.stub, "float z;\nif (i < n) c[i] = a[i] + b[i] + 0 * z;"))
    assert any("z is used before its value is set" in hint for hint in lucky.hints) and not lucky.printed


def test_a_finding_names_the_line_that_jupyterlab_numbers_and_shows_it():
    puzzle = find_puzzle("00_start_here/guard")
    cell = f"%%puzzle {puzzle.task.id}\n{puzzle.given}"
    detail = attempt(puzzle, puzzle.given, seed=0, device="cpu").diagnosis.detail
    line = int(re.search(r"guard\.cu:(\d+): out of bounds: reads a\[", detail)[1])
    assert cell.splitlines()[line - 1].strip() == puzzle.stub
    assert f"{line} | {puzzle.stub}" in detail


def test_the_first_finding_is_of_the_launch_that_the_widget_below_it_draws():
    text = (ROOT / "notebooks" / "00_start_here.ipynb").read_text(encoding="utf-8")
    n, threads = map(int, re.search(r"widgets\.launch_grid\(n=(\d+), threads=(\d+)\)", text).groups())
    puzzle = find_puzzle("00_start_here/guard")
    for seed in range(3):
        detail = attempt(puzzle, puzzle.given, seed=seed, device="cpu").diagnosis.detail
        assert (
            f"a has {n} elements" in detail and f"block ({n // threads}, 0, 0), thread ({n % threads}, 0, 0)" in detail
        )


def test_the_page_says_what_is_wrong_and_opens_hint_and_solution():
    puzzle = find_puzzle("00_start_here/guard")
    said = page(puzzle, attempt(puzzle, puzzle.given, seed=0, device="cpu"))
    assert "Not yet" in said and "<summary>Hint</summary>" in said and "<summary>Solution</summary>" in said
    assert "Right." in page(puzzle, attempt(puzzle, puzzle.solved, seed=0, device="cpu"))


def test_parts_of_a_kernel_that_does_not_run_are_not_shown_as_failed():
    puzzle = find_puzzle("00_start_here/guard")
    said = page(puzzle, attempt(puzzle, puzzle.given.replace("b[i];", "b[i]"), seed=0, device="cpu"))
    assert "Not yet: this cell does not compile, line " in said
    assert said.count("<li>– ") == said.count(": not run</li>") == 2 and "✗" not in said
    run = page(puzzle, attempt(puzzle, puzzle.given, seed=0, device="cpu"))
    assert run.count("<li>✓") == run.count("<li>✗") == 1 and "not run" not in run


@pytest.mark.parametrize(
    ("kernel", "defines"), [("// nothing yet", "no __global__ function"), ("__global__ void ad() {}", "ad()")]
)
def test_a_cell_without_its_kernel_says_which_one_is_to_be_there(kernel, defines):
    said = attempt(find_puzzle("00_start_here/guard"), kernel, seed=0, device="cpu").diagnosis
    assert (said.name, said.detail) == ("this cell must define add()", f"it defines {defines}")


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("%%puzzle 00_start_here/gard\nx", "there is no 00_start_here/gard. The nearest is 00_start_here/guard."),
        ("%%puzzle swizzle\nx", "there is no swizzle. The nearest is 03_flash_attention_v2/swizzle."),
        ("%%puzzle\nx", "%%puzzle takes the name of a puzzle, such as 00_start_here/guard."),
        ("%%puzzle 00_start_here/guard", "As it was given:\n\n" + find_puzzle("00_start_here/guard").given.strip()),
        ("%%puzzle 00_start_here/guard\n\n  \n", "Below %%puzzle 00_start_here/guard stands the kernel."),
    ],
)
def test_a_wrong_name_and_an_empty_cell_are_told_without_a_traceback(cell, says, capsys):
    shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}))
    shell.run_line_magic("load_ext", "course_utils.puzzles")
    assert isinstance(shell.run_cell(cell).error_in_exec, UsageError)
    told = "".join(capsys.readouterr())
    assert says in told and "Traceback" not in told


def test_the_magic_is_there_after_load_ext_and_proves_the_solution_where_it_is_asked_to(monkeypatch, leaves_no_shell):
    shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}))  # not the one that get_ipython() finds
    shown = []
    monkeypatch.setattr(magic, "display", shown.append)
    shell.run_line_magic("load_ext", "course_utils.puzzles")
    puzzle = find_puzzle("00_start_here/guard")
    monkeypatch.setenv(magic.PROVE, "1")
    shell.run_cell_magic("puzzle", "00_start_here/guard", puzzle.given)
    verdict, run = shown
    assert "Not yet" in verdict.data
    run.button.set_state({"played": 1})
    assert "It opens at a finding: out of bounds: reads a[" in run.button.status
    assert run.button.below.outputs[0]["data"]["text/plain"].startswith("Player")
    shown.clear()
    shell.run_cell_magic("puzzle", "00_start_here/guard", puzzle.given.replace("}", ""))
    assert len(shown) == 1, "there is nothing to watch of a kernel that does not compile"
    monkeypatch.setattr(type(puzzle), "solved", puzzle.given)
    with pytest.raises(AssertionError, match="the solution of 00_start_here/guard is graded as wrong"):
        magic.puzzle("00_start_here/guard", puzzle.given)


def test_a_right_kernel_hears_what_it_did_and_one_with_an_unset_variable_that_it_is_luck():
    puzzle = find_puzzle("00_start_here/scores_of_one_query")
    right = attempt(puzzle, puzzle.solved, seed=1)
    assert f"<strong>Right.</strong> {puzzle.lesson}" in page(puzzle, right) and right.unset == ""
    text = puzzle.solved.replace("float sum = 0;", "float sum;")
    line = next(n for n, text in enumerate(text.splitlines(), 2) if "sum +=" in text)
    unset = attempt(puzzle, text, seed=1).unset
    assert unset == f"sum is used before its value is set (line {line})"
    said = page(puzzle, replace(right, unset=unset))  # what the kernel itself gives depends on what lies there
    assert f"<strong>Right here, by luck: {unset}.</strong>" in said
    assert NOT_YET in said and "<strong>Right.</strong>" not in said and puzzle.lesson not in said


def test_a_kernel_that_hangs_can_be_watched_up_to_there(monkeypatch):
    for module in (runner, replay):  # each launch takes all the time that it is given
        monkeypatch.setattr(module, "LAUNCH_SECONDS", 0.2)
        monkeypatch.setattr(module, "LATER_SECONDS", 0.2)
    puzzle = find_puzzle("00_start_here/guard")
    text = puzzle.given.replace("c[i]", "const float first = a[i];\n    while (n > 0) {}\n    c[i]", 1)
    result = attempt(puzzle, text, seed=1)
    run = run_of(puzzle, text, result).recording
    assert run.steps > 0 and "time limit" in run.failure
