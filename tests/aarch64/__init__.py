"""The emulator on aarch64 Linux, from a machine with another processor: its worker runs under qemu.

machine.py          where qemu, a root and a cross compiler are; an emulator whose kernels and worker are of aarch64
no_guards.cpp       refuses the guards of stacks that qemu does not make
inspect_library.py  runs under qemu, and looks into a library
outcomes.py         what a launch gives, to compare two processors
under_qemu.py       a plugin of pytest, by which tests of the emulator run there
__main__.py         python -m tests.aarch64: the table of what is equal

What differs from x86, and why:

on any ARM     the NaN of an operation without a result has no sign, so its bits, signbit() and copysign() differ
               (docs/validation.md); of two NaNs an operation may pass on the other one
larger pages   where Linux has pages of 16 or 64 KiB, a plain launch finds accesses past the dynamic shared memory from
               the next page on only; sanitize() finds each
under qemu     a misaligned vector has the words of a null pointer (under_qemu.py)
"""
