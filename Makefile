# `make demo` and `make test` work on a bare machine: the first call makes .venv and installs there.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
INSTALL := -c constraints.txt -e ".[dev]"
PYTHONS := python3.11 python3.12 python3
# One torch thread per pytest worker: two workers already fill two cores. Each gets half of the tests,
# and takes over what the other one has left.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
# After a failed pytest: pass its status on, and explain the one that says "nothing to do".
NONE_FOUND = status=$$?; \
  [ $$status -ne 5 ] || echo "make test-all: no $(1) test was found; is the marker gone?" >&2; \
  exit $$status;

.PHONY: help demo test test-all lint bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' Makefile

demo: $(STAMP)  ## train ten unequal devices on the embedded benchmark, into a new folder under runs/
	@out=runs/demo; n=2; \
	while [ -e "$$out" ]; do out=runs/demo-$$n; n=$$((n + 1)); done; \
	$(BIN)/dapperfl run --out "$$out" && echo "to type dapperfl in this shell:  . $(BIN)/activate"

test: $(STAMP)  ## run the quick tests (five minutes at most on two cores)
	$(PYTEST)

# Deployments one after another: two at once are too much for two cores.
test-all: $(STAMP)  ## run the slow tests and real deployments, which `make test` leaves out
	@$(PYTEST) -m "slow and not gpu and not flower" --timeout 1200 || { $(call NONE_FOUND,slow) }
	@$(PYTEST) -n 0 -m "flower and not gpu" --timeout 1200 || { $(call NONE_FOUND,flower) }

lint: $(STAMP)  ## check format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(STAMP)  ## measure this package beside what people use; DATA=DIR for real images on a GPU
	$(BIN)/python -m benchmarks.bench $(if $(DATA),--data $(DATA))

clean:  ## remove caches and build output; .venv and runs/ stay
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Written last, so that a failed install is tried again by the next call.
$(STAMP): pyproject.toml constraints.txt
	@python=; for candidate in $(PYTHONS); do \
	  if $$candidate -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' \
	    >/dev/null 2>&1; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "dapperfl needs Python 3.11 or 3.12 with the venv module; tried: $(PYTHONS)." >&2; \
	  echo "Install one of them, or name yours: make PYTHONS=/path/to/python3.12 demo" >&2; \
	  exit 1; \
	fi; \
	echo "Installing into $(VENV) with $$python (once; a few minutes)"; \
	$$python -m venv $(VENV)
	@$(BIN)/python -m pip install -qq $(INSTALL) || { \
	  echo 'The install failed; pip says more without -qq: $(BIN)/python -m pip install $(INSTALL)' >&2; \
	  exit 1; \
	}
	@touch $(STAMP)
