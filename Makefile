# Everything a developer does here. `make run` and `make test` do all set-up themselves.

# An interpreter that is named, such as python3.13, gets an environment of its own: .venv-3.13.
PYTHON :=
VENV := .venv$(patsubst python%,-%,$(notdir $(PYTHON)))
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
VENV42 := .venv-spark42
STAMP42 := $(VENV42)/.installed
# The same two versions of PySpark, with what few need.
STAMP_ECOSYSTEM := .venv-ecosystem/.installed
STAMP_ECOSYSTEM42 := .venv-ecosystem42/.installed
# The generator decides the oldest protobuf our users can have, and needs an old one itself.
PROTOC := grpcio-tools==1.71.2
VENV_PROTOS := .venv-protos
# The optional compiled module, which installing builds where there is a C compiler.
COMPILED := setup.py tubemq_spark/protocol/_speedups.c
INSTALLED_FROM := setup.cfg pyproject.toml constraints.txt $(COMPILED)
# Tests start hundreds of processes, which would compile the package and what it needs each time.
unexport PYTHONDONTWRITEBYTECODE
# Half of their time integration tests wait. The longest groups of tests begin first.
PROCESSES := 3
BY_GROUPS := --dist=loadgroup --no-loadscope-reorder
# Half of their time unit tests wait.
UNIT_PROCESSES := 4
# Tests that take too long for every change run in `make nightly`.
USUAL := -m "not nightly"
LONG := TUBEMQ_LONG_TESTS=1 TUBEMQ_SEED=$$(date +%Y%m%d)
# One after the other: with time-outs of their own, tests of one part fail beside another one. All run, whatever fails.
NIGHTLY := nightly-unit nightly-mutants nightly-parity nightly-integration nightly-spark42 ecosystem43 ecosystem42 nightly-fuzz run wheel-test
# Long forms keep processors and the disk busy: on a slow machine, with three processes Python workers came too late
# for Spark.
NIGHTLY_PROCESSES := 2
NIGHTLY_SEQUENCES := 2000
NIGHTLY_FUZZ_SECONDS := 600
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

.PHONY: help run test test-integration mutants stress quick quick-unit quick-spark nightly nightly-unit nightly-mutants nightly-parity nightly-integration nightly-spark42 nightly-fuzz unit again simulate coverage integration real artifacts spark42 ecosystem ecosystem42 ecosystem43 check check-proto released-proto fmt fuzz fuzz-speedups protos docs site release-check bench bench-kafka dist wheel-test venv java clean

help: ## this list
	@awk -F ':.*## ' '/^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z0-9%-]+:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Run and set up

run: java $(STAMP) ## the main job on the embedded server; ARGS="--master host:port" for a running TubeMQ
	$(BIN)/tubemq-spark demo $(ARGS)

venv: $(STAMP) ## just .venv, with the package and all test tools in it; with PYTHON=python3.13, .venv-3.13

artifacts: $(STAMP) ## fetch the Java TubeMQ, once; without Maven nothing
	$(BIN)/python -m integration_tests.real.artifacts

clean: ## remove what make made
	rm -rf .venv .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

##@ Test; ARGS="-k test_several_topics" goes to pytest, PYTHON=python3.13 chooses the interpreter

test: unit test-integration ## every test but the long ones; those on the Java TubeMQ are skipped with a reason where Maven is missing

unit: $(STAMP) ## no Spark, no Java, about six minutes
	$(BIN)/python -m pytest tests -n $(UNIT_PROCESSES) $(USUAL) $(ARGS)

again: $(STAMP) ## the tests that failed last time, one by one; ARGS=tests or ARGS=integration_tests
	$(BIN)/python tools/failed_again.py $(ARGS)

simulate: $(STAMP) ## the client's core in RUNS=300 simulated worlds a scenario; needs PYTHON=python3.12; SCENARIO=reader SEED=7
	$(BIN)/python -m simulation $(SCENARIO) --runs $(RUNS) $(if $(filter file,$(origin SEED)),,--seed $(SEED))

coverage: $(STAMP) ## unit tests, and the branches of each package that they cover; takes half as long again
	$(BIN)/python -m pytest tests -n $(UNIT_PROCESSES) $(USUAL) --cov --cov-report= $(ARGS)
	$(BIN)/python tools/coverage_by_package.py

integration: java $(STAMP) ## Spark on the embedded server
	$(BIN)/python -m pytest integration_tests -m "not real and not nightly" $(ARGS)

real: java artifacts ## Spark and the client on the Java TubeMQ
	$(BIN)/python -m pytest integration_tests -m "real and not nightly" $(ARGS)

spark42: java $(STAMP42) ## Spark on the embedded server, with PySpark 4.2
	$(VENV42)/bin/python -m pytest integration_tests -m "spark and not real and not nightly" $(ARGS)

ecosystem: ecosystem43 ecosystem42 ## pages of docs/spark about other systems (Delta, Iceberg ...), on both PySparks and both servers: an hour

ecosystem43: java artifacts $(STAMP_ECOSYSTEM)
	$(BIN)/python -m integration_tests.real.artifacts --spark
	$(dir $(STAMP_ECOSYSTEM))bin/python -m pytest integration_tests -m ecosystem $(ARGS)

ecosystem42: java artifacts $(STAMP_ECOSYSTEM42)
	$(BIN)/python -m integration_tests.real.artifacts --spark
	$(dir $(STAMP_ECOSYSTEM42))bin/python -m pytest integration_tests -m ecosystem $(ARGS)

test-integration: java artifacts ## Spark on both servers, in several processes
	$(BIN)/python -m pytest integration_tests --numprocesses=$(PROCESSES) $(BY_GROUPS) $(USUAL) $(ARGS)

quick: java $(STAMP) ## lint, unit tests (those of changed files first), six tests through Spark: a minute on four cores
	@$(MAKE) --no-print-directory --jobs=3 --output-sync check quick-unit quick-spark

quick-unit: $(STAMP)
	$(BIN)/python -m pytest tests -n $(UNIT_PROCESSES) $(USUAL) --quick --exitfirst $(ARGS)

quick-spark: java $(STAMP)
	$(BIN)/python -m pytest integration_tests -m "smoke and not real"

mutants: $(STAMP) ## what the unit tests notice when the package is broken; ARGS="--changed", "--sample 200 --seed 7", "--rows S-12"
	$(BIN)/python -m tools.mutants $(ARGS)

stress: java artifacts ## all changes under a stream, in random order, on two Java brokers; ARGS="-k embedded", STEPS=50, SEED=7
	TUBEMQ_LONG_TESTS=1 TUBEMQ_SEED=$(SEED) TUBEMQ_STRESS_STEPS=$(STEPS) \
		$(BIN)/python -m pytest integration_tests/test_stress.py -s -k real $(ARGS)

fuzz: $(STAMP) ## damaged frames against the embedded server for a minute; ARGS="--seed 7 --seconds 600"
	$(BIN)/python -m fuzz.embedded_frames $(ARGS)

fuzz-speedups: $(STAMP) ## the compiled module under ASan and UBSan for a minute, guided by coverage; ARGS="--seconds 1800"
	$(BIN)/python -m fuzz.speedups $(ARGS)

nightly: java artifacts $(STAMP_FRAMES) $(STAMP42) ## everything in its long form, for more than two hours: more kills, more random calls, more fuzzing
	@$(MAKE) --no-print-directory --keep-going $(NIGHTLY)

nightly-unit: $(STAMP)
	$(LONG) $(BIN)/python -m pytest tests -n $(UNIT_PROCESSES) --cov --cov-report= $(ARGS)
	$(BIN)/python tools/coverage_by_package.py

nightly-mutants: $(STAMP)
	$(BIN)/python -m tools.mutants --collect --sample 200 --seed $$(date +%Y%m%d) $(ARGS)

nightly-parity: $(STAMP)
	$(BIN)/python -m tools.mutants --rows

nightly-integration: java artifacts $(STAMP_FRAMES)
	$(LONG) TUBEMQ_DIFFERENTIAL_SEQUENCES=$(NIGHTLY_SEQUENCES) \
		$(BIN)/python -m pytest integration_tests --numprocesses=$(NIGHTLY_PROCESSES) $(BY_GROUPS) \
		-m "not ecosystem" $(ARGS)

# What only the night runs is about servers and time, and shows the same with every PySpark.
nightly-spark42:
	@$(MAKE) --no-print-directory spark42 ARGS="--numprocesses=$(NIGHTLY_PROCESSES) $(BY_GROUPS) $(ARGS)"

nightly-fuzz: $(STAMP)
	@$(MAKE) --no-print-directory --jobs=2 --keep-going fuzz fuzz-speedups \
		ARGS="--seconds $(NIGHTLY_FUZZ_SECONDS)"

##@ Code and pages

check: $(STAMP) ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check-proto: ## buf's rules for the gateway's .proto, and whether clients of the last release still understand it
	@if command -v npm >/dev/null; then set -x; $(BUF) lint && $(BUF) breaking --against $(RELEASED_PROTO); \
		else echo "check-proto was left out: it needs npm, which fetches buf; CI has it"; [ -z "$$CI" ]; fi

released-proto: ## take the gateway's .proto as the released one, for check-proto; with each release
	cp $(GATEWAY)/proto/$(GATEWAY_PROTO) $(RELEASED_PROTO)/$(GATEWAY_PROTO)

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

bench: bench-throughput ## rows a second of every reader and sink; ARGS="--server real" for the Java TubeMQ

bench-kafka: java $(STAMP42) ## beside Spark's own Kafka source, in turns (needs Maven); ARGS="--only read,live --rounds 3"
	$(VENV42)/bin/python benchmarks/against_kafka.py $(ARGS)

bench-%: java $(STAMP) ## any other program of benchmarks/: make bench-send-path, make bench-produce
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
