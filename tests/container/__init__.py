"""The container without Docker: the Dockerfile's steps in a clean Debian, for this processor or another.

dockerfile.py  reads a Dockerfile and .dockerignore, and refuses what it does not know
debian.py      the clean Debian, and programs in it
lab.py         the Dockerfile's command: JupyterLab, its address, and what its page asks it for
__main__.py    python -m tests.container: build and check

bwrap has to be installed. All other tools are unpacked from Debian's packages into a folder, and neither the system nor
the kernel hears of them. Debian stands in for the base image, its Python 3.11 for the image's 3.12: constraints.txt is
tested with both. Docker itself, its network and its filter of system calls are not there. Under qemu the browser's
tests are left out, because a notebook's kernel starts too slowly there.
"""
