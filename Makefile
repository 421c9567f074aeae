# The course's commands. The first one you run prepares .venv; later ones only when the dependencies changed.
#
#   make lab        open the course in JupyterLab
#   make test       the proof that each change needs, and what CI runs
#   make test-all   the same and all that is exhaustive, which takes an hour or two
#   make test-gpu   what needs a GPU, then every chapter there; with a machine's own packages:
#                   make test-gpu PYTHON=python3 INSTALLED=1
#   make mutants    planted mistakes, each of which a test of make test must see; options: ARGS=--help
#   make mutants-of-solutions  every change of a solution's operators, constants, bounds …, which the grader must see
#   make outputs     listings and pictures of the chapters anew, as GitHub shows them; then make format
#   make format     tidy the Python code and the notebooks
#   make bench      timings of one chapter, for example: make bench CHAPTER=02_flash_attention_minimal
#   make exercises  exercises/ anew from solutions/, in the place of what is there
#   make classroom  what a teacher needs: the course with nbgrader and Dask, and which isolation this machine has
#   make release    the exercises for a class, in the folder CLASS (docs/teaching.md)
#   make site       the chapters as pages to read, in build/site; with REPOSITORY=owner/name their badges, too
#   make badges     badges and the set-up cell for Colab and Kaggle into the chapters: make badges REPOSITORY=owner/name

PYTHON  ?= python3
JOBS    ?= 2
CHAPTER ?= 00_start_here
CLASS   ?= classroom
# The versions to install, for pip: the tested ones, or .ci/lowest.txt and .ci/highest.txt.
CONSTRAINTS ?= constraints.txt
# Where the course lies on GitHub, as owner/name; GitHub's own workflows say it.
REPOSITORY ?= $(GITHUB_REPOSITORY)

BIN    := .venv/bin
STAMP  := .venv/.installed
# What the tests run with. INSTALLED=1 takes the packages that $(PYTHON) has, and installs nothing.
RUN    := $(if $(INSTALLED),$(PYTHON),$(BIN)/python)
READY  := $(if $(INSTALLED),,$(STAMP))
PYTEST := $(RUN) -m pytest
NBVAL  := -p tests.helpers.nbval_pictures --nbval-lax --nbval-current-env --nbval-cell-timeout=300 --ignore-glob='*.my-work-*' notebooks
# JupyterLab's defaults for this course: no pop-up that asks about news.
export JUPYTER_CONFIG_PATH := $(CURDIR)/course_utils/jupyter
# A container's only user is root, and JupyterLab asks root to say so.
ROOT_FLAG := $(if $(filter 0,$(shell id -u)),--allow-root)
# In a codespace the browser has the page by another name.
DOMAIN := $(GITHUB_CODESPACES_PORT_FORWARDING_DOMAIN)
CODESPACE_FLAGS := $(if $(CODESPACE_NAME),--ServerApp.allow_remote_access=True \
    --ServerApp.allow_origin=https://$(CODESPACE_NAME)-8888.$(DOMAIN))

PARTS := lint classroom tests notebooks pages
.PHONY: lab test test-all test-gpu mutants mutants-of-solutions outputs format bench exercises classroom release site badges $(PARTS:%=test-%)
.DELETE_ON_ERROR:

lab: $(STAMP)
	$(BIN)/jupyter lab $(ROOT_FLAG) $(CODESPACE_FLAGS) --ServerApp.root_dir=$(CURDIR) notebooks/00_start_here.ipynb

# $(call without,ROOMS): leaves them out of tests/.
without = $(1:%=--ignore tests/%)
# $(call timed,NAME,COMMANDS): stops at the first command that fails, and notes how long they took.
timed = @start=$$(date +%s); trap 'echo "$(1) $$(($$(date +%s) - start)) s" >> build/times' EXIT; set -e; $(2)
# $(call parts,MORE,FLAGS): runs the parts, also when one fails.
parts = $(MAKE) --no-print-directory --keep-going $(2) $(1:%=test-%)
# $(call proof,COMMAND): runs it, and says how long each part took.
proof = @mkdir -p build; rm -f build/times; start=$$(date +%s); status=0; $(1) || status=$$?; \
    echo; cat build/times; echo "all $$(($$(date +%s) - start)) s"; exit $$status

# Two lanes that take as long, side by side: the tests, whose dots show how far they are, and what is read, clicked and
# handed in.
test: $(READY)
	$(call proof,$(call parts,in-dots read-and-clicked,--jobs))

# One part after the other: the chapters' time limits in JupyterLab hold for a machine that does nothing else.
test-all: $(READY)
	$(call proof,$(call parts,$(PARTS),--jobs=1 EXHAUSTIVE=--exhaustive))

# One thread of PyTorch in each process: the processes are as many as the cores.
test-%: export OMP_NUM_THREADS = 1
# Some machines tell Python to keep no bytecode. Each of the proof's many processes would then compile all it imports.
unexport PYTHONDONTWRITEBYTECODE
# The kernels of the notebooks, too, take the course from here where nothing is installed.
ifdef INSTALLED
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
endif

test-lint:
	$(call timed,lint,$(RUN) -m ruff check .; $(RUN) -m ruff format --check .)

# Dask's workers die and start again within seconds, or the tests of a class fail: nothing else of this lane runs beside.
test-classroom:
	$(call timed,classroom,$(PYTEST) -p no:nbval $(EXHAUSTIVE) tests/classroom)

test-tests:
	$(call timed,tests,$(PYTEST) -p no:nbval $(EXHAUSTIVE) -n $(JOBS) --dist worksteal tests $(call without,browser site classroom))

# A notebook waits for its kernel, its compilers and its children: two at once take the time of one. Half of that time
# goes into pictures: `make test` draws fully those that its small site shows, `make test-all` all.
test-notebooks:
	$(call timed,notebooks,$(PYTEST) -p tests.helpers.keep_outputs -p tests.helpers.recorded_outputs \
	    -p tests.helpers.forked_kernels $(if $(EXHAUSTIVE),,--small-site) -n $(JOBS) --dist loadfile $(NBVAL))

# The site shows what nbval has just run. One process for it and for JupyterLab: PyTorch and Chromium start once.
test-pages:
	$(call timed,pages,$(PYTEST) -p no:nbval $(EXHAUSTIVE) tests/site tests/browser)

test-in-dots:
	@$(call parts,lint tests,--jobs=1)

# Prints when it is done, so that it does not stand between the dots of the tests.
test-read-and-clicked:
	@$(call parts,classroom notebooks pages,--jobs=1) > build/read-and-clicked.log 2>&1; status=$$?; \
	    cat build/read-and-clicked.log; exit $$status

# A chapter that is run as a test must not count as read: its progress goes to build/. The solutions of its puzzles must
# be right on the GPU, too; on the emulator tests/puzzles proves them.
test-gpu: $(READY)
	@mkdir -p build; rm -f build/times
	$(call timed,tests,$(PYTEST) -n 10 --dist worksteal -m gpu tests $(call without,browser site classroom))
	$(call timed,notebooks,XDG_DATA_HOME=$(CURDIR)/build/test-data COURSE_PROVES_PUZZLES=1 $(PYTEST) -n $(JOBS) --dist loadfile $(NBVAL))
	@cat build/times

mutants: $(STAMP)
	$(BIN)/python -m tests.mutants $(ARGS)

mutants-of-solutions: $(STAMP)
	$(BIN)/python -m tests.mutants.solutions $(ARGS)

outputs: $(STAMP)
	$(BIN)/python .ci/save_outputs.py notebooks/*.ipynb
	$(MAKE) --no-print-directory format

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/nbstripout --keep-count --keep-id notebooks/*.ipynb
	$(BIN)/python .ci/tidy_notebooks.py notebooks/*.ipynb
	$(BIN)/python -m course_utils reading --write

bench: $(STAMP)
	$(BIN)/python -m course_utils bench $(CHAPTER)

exercises: $(STAMP)
	$(BIN)/python -m course_utils exercises

classroom: $(STAMP)
	@$(BIN)/python -c 'from course_utils.grading.sandbox.parent import isolation_available as a; works, why = a(); print("bubblewrap keeps submissions apart here." if works else "bubblewrap does not work here: " + why)'

release: $(STAMP)
	$(BIN)/python -m course_utils classroom release --folder $(CLASS)

site: $(STAMP)
	$(BIN)/python -m course_utils.site build --repository "$(REPOSITORY)"

badges: $(STAMP)
	$(BIN)/python -m course_utils.site badges --repository "$(REPOSITORY)"

# With an NVIDIA driver: PyTorch's GPU build from PyPI, and CuPy. Without one: PyTorch's CPU build from its own index, if
# that answers within a few seconds; otherwise pip takes what its usual indexes have. Python compiles what it imports.
$(STAMP): pyproject.toml $(CONSTRAINTS)
	@test "$$(uname -s)" = Linux || { echo "The emulator needs Linux. Here the course runs in a container: docker compose up (README.md)."; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "The course needs Python 3.11 or newer; %s is %d.%d. Try: make PYTHON=python3.12" % (sys.executable, v[0], v[1]))'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
	    { echo "Could not make .venv. On Debian and Ubuntu: apt-get install python3-venv"; rm -rf .venv; exit 1; }
	@extras=test; index=; \
	if nvidia-smi >/dev/null 2>&1; then extras=test,cuda; \
	elif timeout 8 $(BIN)/python -c 'import urllib.request as u; u.urlopen("https://download.pytorch.org/whl/cpu/torch/", timeout=4)' 2>/dev/null; \
	then index="--extra-index-url https://download.pytorch.org/whl/cpu"; fi; \
	echo "Installing the course into .venv (extras: $$extras). The first time takes some minutes and 2.4 GB; nothing is printed meanwhile."; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $$index -c $(CONSTRAINTS) -e ".[$$extras]"
	@touch $@
