"""NVIDIA's ncu and compute-sanitizer beside the emulator: run them, read them, and say where both differ."""
