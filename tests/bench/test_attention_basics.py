"""Chapter 01's benchmarks, on the emulator: each step of naive attention does what its name says."""

import torch

from course_utils.bench import attention_basics
from course_utils.bench.timed import random_inputs


def test_naive_steps_time_every_step_beside_torch(one_run_each):
    rows = attention_basics.naive_steps(device="cpu", batch=1, heads=2, lengths=(40,))
    passes = ["scores_uncoalesced.cu", "scores_uncoalesced.cu, K transposed", "scores.cu", "torch Q @ K.mT"]
    passes += ["softmax.cu", "torch softmax", "output.cu", "torch P @ V"]
    assert [row["name"] for row in rows] == [*passes, *attention_basics.WHOLE]
    assert [row.get("peak_mb") for row in rows] == [None] * 8 + [3] * 3


def test_timed_steps_compute_what_their_names_say():
    query, key, value = random_inputs((1, 2, 40, 64), "cpu", torch.float32)
    functions = attention_basics._naive_step_functions(query, key, value)
    results = {name: fn().clone() for name, fn in functions.items()}
    scaled = results["torch Q @ K.mT"] * 64**-0.5
    for ours, expected in [
        ("scores_uncoalesced.cu", scaled),
        ("scores_uncoalesced.cu, K transposed", scaled),
        ("scores.cu", scaled),
        ("softmax.cu", results["torch softmax"]),
        ("output.cu", results["torch P @ V"]),
        ("naive_attention", results["naive torch"]),
        ("SDPA", results["naive torch"]),
    ]:
        torch.testing.assert_close(results[ours], expected, atol=1e-5, rtol=1e-4)
