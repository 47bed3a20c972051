# Needs python3, make and a network to the package index; everything goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

TESTED := $(VENV)/tested
BENCHED := $(VENV)/benched
SRC ?=

.PHONY: help demo test fuzz lint type bench bench-smoke build clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

$(READY): requirements-dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	@touch $@

$(TESTED): $(READY) requirements-interop.txt
	$(BIN)/python -m pip install --quiet -r requirements-interop.txt
	@touch $@

$(BENCHED): $(READY)
	$(BIN)/python -m pip install --quiet -e ".[bench]"
	@touch $@

demo: $(READY) ## draw images, convert, load and train on them; ends with demo/report.html
	$(BIN)/fastdata demo demo

test: $(TESTED) ## run the tests
	@command -v cjpeg >/dev/null && $(BIN)/python -c 'import turbojpeg; turbojpeg.TurboJPEG()' || { \
	    echo "make test needs libjpeg-turbo 2 and its cjpeg (Debian:" \
	        "apt install libturbojpeg0 libjpeg-turbo-progs)" >&2; exit 1; }
	$(BIN)/python -m pytest --numprocesses=auto --dist=loadscope --max-worker-restart=0

fuzz: $(TESTED) ## look for new odd files and settings, for long
	FASTDATA_FUZZ=5000 $(BIN)/python -m pytest --numprocesses=auto tests/fuzz

lint: $(READY) ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(READY) ## check types
	$(BIN)/mypy

bench-smoke: $(READY) ## run every benchmark briefly; the figures mean nothing
	$(BIN)/python -m bench.smoke

bench: $(BENCHED) ## measure everything; SRC=folder of photographs, else images are drawn; takes hours
	$(BIN)/python -m bench.full $(SRC)

build: $(READY) ## build the wheel and the source archive into dist/
	$(BIN)/python -m build

clean: ## remove what make has made
	rm -rf $(VENV) demo dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
