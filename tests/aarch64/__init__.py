"""The emulator on aarch64 Linux, from a machine with another processor: its worker runs under qemu.

machine.py          where qemu, a root and a cross compiler are; an emulator whose kernels and worker are of aarch64
inspect_library.py  runs under qemu, and looks into a library
outcomes.py         what a launch gives, to compare two processors
__main__.py         python -m tests.aarch64: the table of what is equal
"""
