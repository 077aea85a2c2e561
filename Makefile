# Two commands matter: `make demo` serves the bundled models, `make test` runs every test. Both set up what they need.
PYTHON ?= python3
PORT ?= 8000
# Processes that `make test` runs; TEST_JOBS=0 runs the tests in one. One more than cores: many tests wait for a server.
TEST_JOBS ?= $(shell expr $$(nproc) + 1)
VENV := .venv
BIN := $(VENV)/bin
comma := ,
# What the built library and the installed metadata depend on.
SOURCES := pyproject.toml CMakeLists.txt ops/CMakeLists.txt ops/__init__.py $(shell find ops -name '*.cc' -o -name '*.h' -o -name '*.inl' -o -name '*.inc' -o -name 'spec.py' -o -name 'codegen.py' -o -name '*.lds')
CPP := $(shell find ops tests -name '*.cc' -o -name '*.h' -o -name '*.inl' -o -name '*.cu')

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-ray docs docs-test fuzz-http bench check format build gen sanitize package release-check container clean cuda cuda-on-host test-cuda bench-cuda sanitize-cuda gpu-bundle

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "attenuator needs Python 3.11 or newer; set PYTHON=/path/to/python3" >&2; exit 1; }
	@command -v c++ >/dev/null || { echo "attenuator needs a C++ compiler: apt-get install g++" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "python's venv module is missing: apt-get install python3-venv" >&2; rm -rf $(VENV); exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade pip -r scripts/build_tools.txt

# Installs the package with the extras $(1). pip is silent while the operators compile: of all that it can say, packages and ninja's [n/m] are
# shown, and all of it where it fails.
define install
	@echo "Installing, and compiling the operators: a minute or two on many cores, up to ten on few."
	@set -e; log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	{ $(BIN)/python -m pip install -v --no-build-isolation -e $(1) 2>&1 && echo installed; } | tee "$$log" | \
	  sed -unE 's/^ *(\[[0-9]+\/[0-9]+\]) .* ([^ ]+)$$/  \1 \2/p; /^ *(Collecting|Downloading|Installing collected|ERROR)/p'; \
	tail -1 "$$log" | grep -q '^installed$$' || { cat "$$log" >&2; exit 1; }
endef

# The service alone: no torch.
$(VENV)/.demo: $(BIN)/python $(SOURCES)
	$(call install,.[cpu])
	@touch $@

# Everything, for tests, export and training.
$(VENV)/.setup: $(BIN)/python $(SOURCES)
	$(call install,.[dev])
	@touch $@ $(VENV)/.demo

$(VENV)/.ray: $(VENV)/.setup
	$(call install,.[dev$(comma)ray])
	@touch $@

setup: $(VENV)/.setup ## a .venv with everything and the built operators

demo: $(VENV)/.demo ## serve the bundled models on http://127.0.0.1:8000 (PORT=...)
	@$(BIN)/attenuator serve examples/bundles --host 127.0.0.1 --port $(PORT) || \
		{ code=$$?; echo 'if the port is taken: make demo PORT=8001' >&2; exit $$code; }

# Where PYTHONDONTWRITEBYTECODE is set, as in many images, each of a thousand processes would compile this project anew.
test: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.setup cuda-on-host ## every test
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile

test-ray: $(VENV)/.ray ## the Ray Serve application: two replicas, one killed under load, a bundle rolled over
	ATTENUATOR_TEST_RAY=1 $(BIN)/python -m pytest -rfEP tests/rayserve

# Requests that `make fuzz-http` generates for each kind of fault.
REQUESTS ?= 10000
fuzz-http: $(VENV)/.setup ## send the service 10,000 requests (REQUESTS=...) generated from its own OpenAPI description
	SCHEMA_REQUESTS=$(REQUESTS) $(BIN)/python -m pytest -n $(TEST_JOBS) --timeout 3600 -rfEP tests/serve/test_schema_requests.py

bench: $(VENV)/.setup ## measure operators and whole models beside ONNX Runtime's attention: results, plots, README
	$(BIN)/python -m benchmarks.run_all

cuda: $(VENV)/.setup ## compile the CUDA operators (nvcc is fetched if there is none) and check the machine code; needs no GPU
	scripts/cuda_build.sh

cuda-on-host: $(VENV)/.setup ## build the test device, which runs the CUDA kernels' code on the CPU
	scripts/cuda_build.sh on-host

test-cuda: ## on a GPU: the tests that need one
	PYTHON=$(PYTHON) scripts/cuda_host.sh test

bench-cuda: ## on a GPU: measure the operators beside other attention
	PYTHON=$(PYTHON) scripts/cuda_host.sh bench

sanitize-cuda: ## on a GPU: the hostile-input tests under compute-sanitizer
	PYTHON=$(PYTHON) scripts/cuda_host.sh sanitize

gpu-bundle: $(VENV)/.setup ## one archive for a GPU machine without a network (scripts/gpu_bundle.py): minutes
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python scripts/gpu_bundle.py

check: $(VENV)/.setup ## ruff, mypy, clang-format, generated files current
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	$(BIN)/python scripts/gen.py --check
	$(BIN)/python scripts/dashboard.py --check

format: $(VENV)/.setup ## rewrite the sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

docs: $(VENV)/.setup ## build the documents as a site in build/site; fails on a link that leads nowhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

docs-test: $(VENV)/.setup ## run every code block of README and docs, page by page: minutes
	$(BIN)/python -m pytest -m documents -n $$(nproc) --dist loadgroup --timeout 1800 tests/test_code_blocks.py

build: $(BIN)/python ## build the operators again
	$(call install,. --no-deps)

gen: $(VENV)/.setup ## write the generated parts of the documentation and the dashboard
	$(BIN)/python scripts/gen.py
	$(BIN)/python scripts/dashboard.py

sanitize: $(VENV)/.setup ## the hostile-input tests under AddressSanitizer and UBSan
	scripts/sanitize.sh

package: $(VENV)/.setup ## sdist -> wheel -> a fresh environment that classifies with the installed package; the JavaScript client
	scripts/package.sh

# KEY signs the checksums: path of an SSH key, or the name of a key of gpg's. SYSTEMS keeps root file systems for the next run.
release-check: $(VENV)/.setup ## what a release consists of, tried on Pythons and systems, with signed checksums (KEY=...), in dist/
	$(BIN)/python scripts/release_check.py $(if $(KEY),--key "$(KEY)") $(if $(SYSTEMS),--systems "$(SYSTEMS)")

container: ## build the image (DEVICE=cpu or gpu) with buildah, start its server, classify: as root, without a Docker engine
	.ci/container.sh $(or $(DEVICE),cpu)

clean: ## remove everything that was built
	rm -rf $(VENV) .venv-cuda build dist .pytest_cache .mypy_cache .ruff_cache
