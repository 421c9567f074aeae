"""Measures a chapter's figures on a GPU, one module for each chapter; `subjects` lists them all.

On a machine with an NVIDIA GPU that nothing else uses, after `make lab`:

    .venv/bin/python -m course_utils bench 02_flash_attention_minimal --record    # and the other chapters
    .venv/bin/python -m course_utils bench best_peers --record      # beside flash-attn-4 and FlashMLA: see below
    .venv/bin/python -m course_utils bench model_softmax --record   # sinks and softcaps, beside flash-attn-4's
    .venv/bin/python -m course_utils bench held_out --record        # windows at sizes that no kernel was tuned for
    .venv/bin/python -m course_utils bench host --record            # the host's time of a call, of each operator
    .venv/bin/python -m course_utils bench compiled_step --record   # a training step by torch.compile, of chapter 03
    .venv/bin/python -m course_utils bench hopper_ablations --record   # chapter 07's steps without a part
    .venv/bin/python -m course_utils bench counters --record        # ncu on the micro-kernels and the chapters' kernels
    .venv/bin/python -m course_utils bench sanitizer --record       # compute-sanitizer on the broken and the clean ones
    .venv/bin/python -m course_utils bench sanitizer --markdown docs/validation.md
    .venv/bin/python -m course_utils grade --examples tests/grading/submissions --device cuda --record

`--record` writes course_utils/measured/<name>.json with the device, the versions, the date and the command; notebooks
read it with `measured.load("NN_slug")` and show the figures with that label on machines without a GPU. Compare two
implementations only within one run. `07_hopper_h100.json` is a second record of one chapter, from another GPU.

Chapter 05 has peers that are examples of a repository and in no package. Without them their rows are left out:

    git clone https://github.com/tile-ai/tilelang && .venv/bin/pip install tilelang==$(cat tilelang/VERSION)
    TILELANG_EXAMPLES=tilelang/examples .venv/bin/python -m course_utils bench 05_deepseek_sparse --record

`best_peers` and `model_softmax` time packages that the course does not need; `installed_peers.py` has the versions that
were tried:

    .venv/bin/pip install 'flash-attn-4[cu13]==4.0.0b36' && .venv/bin/pip install --no-deps sgl-flash-mla==1.0.0
"""
