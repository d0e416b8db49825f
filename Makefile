# Everything a developer does here. `make run` and `make test` do all set-up themselves.

# An interpreter that is named, such as python3.13, gets an environment of its own: .venv-3.13.
PYTHON :=
VENV := .venv$(patsubst python%,-%,$(notdir $(PYTHON)))
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
VENV42 := .venv-spark42
STAMP42 := $(VENV42)/.installed
# The same two versions of PySpark, with what few need: for .ci/nightly.
STAMP_ECOSYSTEM := .venv-ecosystem/.installed
STAMP_ECOSYSTEM42 := .venv-ecosystem42/.installed
# The generator decides the oldest protobuf our users can have, and needs an old one itself.
PROTOC := grpcio-tools==1.71.2
VENV_PROTOS := .venv-protos
# The optional compiled module, which installing builds where there is a C compiler.
COMPILED := setup.py tubemq_spark/protocol/_speedups.c
INSTALLED_FROM := setup.cfg pyproject.toml constraints.txt $(COMPILED)
# Half of their time integration tests wait. The longest groups of tests begin first.
PROCESSES := 3
BY_GROUPS := --dist=loadgroup --no-loadscope-reorder
IN_PROCESSES = --numprocesses=$(PROCESSES) $(BY_GROUPS) $(USUAL)
MARKS_embedded := not real and not nightly
MARKS_real := real and not nightly
SERVER :=
# Half of their time unit tests wait.
UNIT_PROCESSES := 4
# Tests that take too long for every change run in `make nightly`.
USUAL := -m "not nightly"
# Of make simulate.
SCENARIO := all
RUNS := 300
# Of make stress; the seed repeats a run.
STEPS := 50
SEED := $(shell date +%s)
PROTOS := $(wildcard tubemq_spark/protocol/pb/*.proto)
# The gateway's .proto is where buf wants it, and its generated code where our other modules of it are.
GATEWAY := tubemq_spark/protocol/gateway
GATEWAY_PROTO := tubemq/gateway/v1/gateway.proto
RELEASED_PROTO := tools/released_proto
BUF := npm exec --yes --package=@bufbuild/buf@1.75.0 -- buf

# Tests start hundreds of Python processes; without bytecode on disk each compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

# Python compiles what is imported; pip would compile all, which takes a third of its time.
PIP_QUIETLY := --quiet --no-compile
PIP_INSTALL := pip install $(PIP_QUIETLY) --config-settings editable_mode=compat
PATIENTLY := tools/patiently.sh 10 "installing Python packages, which takes a minute or two"
INSTALL := $(PATIENTLY) $(BIN)/python -m $(PIP_INSTALL) -c constraints.txt -e

# In the same environment: what few need.
STAMP_DOCS := $(VENV)/.docs-installed
STAMP_RELEASE := $(VENV)/.release-installed
STAMP_FRAMES := $(VENV)/.frames-installed
# Of make release-check: the tag that is to be released, such as v0.1.0.
TAG :=

.PHONY: help run venv artifacts clean test unit integration quick simulate mutants stress fuzz fuzz-speedups nightly check check-proto fmt protos docs site bench-kafka dist wheel-test release-check java

help: ## this list
	@awk -F ':.*## ' '/^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z0-9%-]+:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Run and set up

run: java $(STAMP) ## the main job on the embedded server; ARGS="--master host:port" for a running TubeMQ
	$(BIN)/tubemq-spark demo $(ARGS)

venv: $(STAMP) ## just .venv, with the package and all test tools in it; with PYTHON=python3.13, .venv-3.13

clean: ## remove what make made
	rm -rf .venv .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

##@ Test; ARGS="-k test_several_topics" goes to pytest, PYTHON=python3.13 chooses the interpreter

test: unit integration ## every test but the long ones; those on the Java TubeMQ are skipped with a reason where Maven is missing

unit: $(STAMP) ## no Spark, no Java, about six minutes
	$(BIN)/python -m pytest tests -n $(UNIT_PROCESSES) $(USUAL) $(ARGS)

simulate: $(STAMP) ## the client's core in RUNS=300 simulated worlds a scenario; needs PYTHON=python3.12; SCENARIO=reader SEED=7
	$(BIN)/python -m simulation $(SCENARIO) --runs $(RUNS) $(if $(filter file,$(origin SEED)),,--seed $(SEED))

integration: java artifacts ## Spark on both servers, in several processes; SERVER=embedded or SERVER=real: on one, in one process
	$(BIN)/python -m pytest integration_tests $(if $(SERVER),-m "$(MARKS_$(SERVER))",$(IN_PROCESSES)) $(ARGS)

quick: java $(STAMP) ## lint, unit tests (those of changed files first), six tests through Spark: a minute on four cores
	BIN=$(BIN) .ci/quick $(ARGS)

mutants: $(STAMP) ## what the unit tests notice when the package is broken; ARGS="--changed", "--sample 200 --seed 7", "--rows S-12"
	$(BIN)/python -m tools.mutants $(ARGS)

stress: java artifacts ## all changes under a stream, in random order, on two Java brokers; ARGS="-k embedded", STEPS=50, SEED=7
	TUBEMQ_LONG_TESTS=1 TUBEMQ_SEED=$(SEED) TUBEMQ_STRESS_STEPS=$(STEPS) \
		$(BIN)/python -m pytest integration_tests/test_stress.py -s -k real $(ARGS)

fuzz: $(STAMP) ## damaged frames against the embedded server for a minute; ARGS="--seed 7 --seconds 600"
	$(BIN)/python -m fuzz.embedded_frames $(ARGS)

fuzz-speedups: $(STAMP) ## the compiled module under ASan and UBSan for a minute, guided by coverage; ARGS="--seconds 1800"
	$(BIN)/python -m fuzz.speedups $(ARGS)

nightly: java artifacts ## everything in its long form, for more than two hours; ARGS="mutants parity": parts of it
	VENV=$(VENV) .ci/nightly $(ARGS)

##@ Code and pages

check: $(STAMP) ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check-proto: ## buf's rules for the gateway's .proto, and whether clients of the last release still understand it
	@if command -v npm >/dev/null; then set -x; $(BUF) lint && $(BUF) breaking --against $(RELEASED_PROTO); \
		else echo "check-proto was left out: it needs npm, which fetches buf; CI has it"; [ -z "$$CI" ]; fi

fmt: $(STAMP) ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: $(VENV_PROTOS)/.installed ## write *_pb2.py beside the .proto files of protocol/
	$(VENV_PROTOS)/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $(PROTOS)
	$(VENV_PROTOS)/bin/python -m grpc_tools.protoc -I$(GATEWAY)/proto --python_out=$(GATEWAY) --pyi_out=$(GATEWAY) \
		$(GATEWAY_PROTO)
	mv $(GATEWAY)/$(GATEWAY_PROTO:.proto=_pb2.py)* $(GATEWAY)
	cd $(GATEWAY) && rmdir -p $(dir $(GATEWAY_PROTO))

docs: $(STAMP) ## write the generated pages
	set -e; for generator in tools/gen_*.py; do $(BIN)/python $$generator; done

site: $(STAMP_DOCS) ## all pages as a site, in build/site; a dead link or an old generated page ends it
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

##@ Benchmarks; benchmarks/README.md says what each shows

bench-kafka: java $(STAMP42) ## beside Spark's own Kafka source, in turns (needs Maven); ARGS="--only read,live --rounds 3"
	$(VENV42)/bin/python benchmarks/against_kafka.py $(ARGS)

bench-%: java $(STAMP) ## any other program: make bench-throughput ARGS="--server real", make bench-send-path
	$(BIN)/python benchmarks/$(subst -,_,$*).py $(ARGS)

##@ Release

dist: $(STAMP) ## dist/: sdist, wheel, and the zip for --py-files
	$(BIN)/python tools/build_dist.py
	@echo "built $$(ls dist | tr '\n' ' ')in dist/; to install: pip install \"$$(ls dist/*.whl)[spark]\""

wheel-test: java $(STAMP) ## the wheel in fresh environments, on a Spark cluster, by Connect; ARGS=--short: README's blocks, examples
	$(BIN)/python -m integration_tests.wheel $(ARGS)

release-check: site dist $(STAMP_RELEASE) ## what is released: site, sdist, wheel, their metadata, wheel-test; TAG=v0.1.0 for a release
	$(BIN)/python -m twine check --strict dist/*.whl dist/*.tar.gz
	$(BIN)/python tools/check_release.py $(TAG)
	@$(MAKE) --no-print-directory wheel-test

java:
	@tools/need.sh java

artifacts: $(STAMP) # fetch the Java TubeMQ, once; without Maven nothing
	$(BIN)/python -m integration_tests.real.artifacts

$(STAMP): $(INSTALLED_FROM)
	"$$(PYTHON=$(PYTHON) tools/need.sh python)" -m venv $(VENV)
	$(INSTALL) '.[spark,dev]'
	@touch $@

$(STAMP_DOCS): $(STAMP)
	$(INSTALL) '.[docs]'
	@touch $@

$(STAMP_RELEASE): $(STAMP)
	$(INSTALL) '.[release]'
	@touch $@

$(STAMP_FRAMES): $(STAMP)
	$(INSTALL) '.[frames]'
	@touch $@

$(STAMP42): EXTRAS := spark,dev
$(STAMP_ECOSYSTEM) $(STAMP_ECOSYSTEM42): EXTRAS := spark,dev,ecosystem

$(STAMP_ECOSYSTEM): $(INSTALLED_FROM)
	"$$(tools/need.sh python)" -m venv $(@D)
	$(PATIENTLY) $(@D)/bin/python -m $(PIP_INSTALL) -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

$(STAMP42) $(STAMP_ECOSYSTEM42): $(INSTALLED_FROM)
	"$$(tools/need.sh python)" -m venv $(@D)
	grep -v -E '^(pyspark|py4j)==' constraints.txt > $(@D)/constraints.txt
	$(PATIENTLY) $(@D)/bin/python -m $(PIP_INSTALL) -c $(@D)/constraints.txt -e '.[$(EXTRAS)]' 'pyspark>=4.2,<4.3'
	@touch $@

$(VENV_PROTOS)/.installed: Makefile
	"$$(tools/need.sh python)" -m venv $(VENV_PROTOS)
	$(PATIENTLY) $(VENV_PROTOS)/bin/python -m pip install $(PIP_QUIETLY) '$(PROTOC)'
	@touch $@
