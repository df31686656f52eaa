PYTHON ?= python3
BIN := .venv/bin

# pytest rewrites its plugins and the tests in each of its processes, unless it finds them compiled
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: release release-test demo test pytest lint types layers simulate metamorphic bench exam faults calibrate mutants gpu docs metrics format venv servers clean

demo: ## measure a short run on this machine and report it (one to two minutes)
	@$(PYTHON) deploy/demo.py

test: servers .venv/test.stamp ## all checks, the same as in CI
	$(MAKE) --no-print-directory -j 2 lint types layers pytest

# the first collection compiles all modules and tests once, before several workers do it at the same time
pytest: .venv/compiled.stamp
	$(BIN)/python -m pytest -n 5 --dist loadscope --no-loadscope-reorder

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/test.stamp
	$(BIN)/mypy

layers: .venv/test.stamp
	$(BIN)/lint-imports

simulate: .venv/test.stamp ## nodes with faults in virtual time, for a minute of CPU; SEED=N replays one
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) $(if $(HOURS),--hours $(HOURS)) $(if $(SHORT),--short) $(if $(QUIET),--quiet)

metamorphic: .venv/test.stamp ## figures that a change of samples, source or time must keep, with N=100 random runs each
	WATTLINE_METAMORPHIC_EXAMPLES=$(or $(N),100) $(BIN)/python -m pytest -n 2 tests/analyzer/metamorphic

bench: .venv/test.stamp ## speed, memory and accuracy, compared with other tools in the same run
	$(BIN)/python -m tests.bench

faults: .venv/test.stamp ## inject each kind of sensor fault N times, by default once (3 minutes), and check the intervals
	@$(BIN)/python -m tests.fault_trials --trials $(or $(N),1) $(if $(SEED),--seed $(SEED))

METER ?= wattline
exam: .venv/test.stamp ## score an energy meter on simulated GPUs: make exam METER=NAME or METER="COMMAND"
	$(BIN)/python -m tests.exam --meter "$(METER)"

calibrate: .venv/test.stamp ## measure the coverage of all intervals, their margins, false alarms, and the error of shares (minutes); then: make docs
	$(BIN)/python -m tests.calibration --seed $(or $(SEED),1) --draws $(or $(DRAWS),2000)
	$(BIN)/python -m tests.calibration.margins --seed $(or $(SEED),1) --draws $(or $(DRAWS),2000)
	$(BIN)/python -m tests.calibration.decisions --seed $(or $(SEED),1) --draws $(or $(DRAWS),2000)
	$(BIN)/python -m tests.calibration.shares --seed $(or $(SEED),1)
	$(BIN)/python -m tests.calibration.windows --seed $(or $(SEED),1)
	$(BIN)/python -m tests.calibration.devices --sensor wave --draws 100 --seed $(or $(SEED),1)
	$(BIN)/python -m tests.laboratory.classes --seed $(or $(SEED),1)
	$(BIN)/python -m tests.laboratory.waves --seed $(or $(SEED),1)
	$(BIN)/python -m tests.laboratory.wave_figures --seed $(or $(SEED),1)

mutants: .venv/mutants.stamp ## change operators and numbers one at a time, and name changes that no nearby test detects: MODULE=NAME, AGAIN=1 for these alone
	@$(BIN)/python -m tests.mutants $(MODULE) $(if $(AGAIN),--again)

gpu: .venv/test.stamp ## measure a real GPU; writes tests/gpu/results/
	$(BIN)/python -m pytest -m gpu -s

docs: metrics .venv/test.stamp ## regenerate the reference tables of the documents
	$(BIN)/python -m tests.docs.reference

metrics: .venv/run.stamp
	$(BIN)/python -m wattline.contract.metrics > exporter/docs/METRICS.md

protobuf: ## regenerate the protobuf classes with protoc 25 (Python 3.11 or 3.12), whose code runs with protobuf 4.25 and later
	$(PYTHON) -m venv build/protobuf
	build/protobuf/bin/pip install --quiet --disable-pip-version-check 'grpcio-tools==1.62.3' 'setuptools<80'
	build/protobuf/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. \
		exporter/wattline_exporter/web/metric_family.proto exporter/wattline_exporter/sensors/kubernetes/*.proto

release: ## build all packages into dist/, equal in each build; SNAPSHOT=1 for a version without a section in CHANGELOG.md
	@$(PYTHON) -m venv --clear build/release-tools
	@build/release-tools/bin/pip install --quiet --disable-pip-version-check --require-hashes -r deploy/packages/build.txt
	@build/release-tools/bin/python -m deploy.packages.release $(if $(SNAPSHOT),--snapshot) $(if $(OUT),--out $(OUT))

release-test: .venv/test.stamp ## build twice, compare, install each package in a clean root and measure (minutes; not in CI)
	@missing=; for name in mmdebstrap podman runc rpmbuild:rpm rpm2cpio cpio qemu-aarch64-static:qemu-user-static; do \
		command -v $${name%:*} >/dev/null || missing="$$missing $${name#*:}"; done; test -z "$$missing" || deploy/apt.sh $$missing
	WATTLINE_RELEASE_TEST=1 $(BIN)/python -m pytest --timeout=3600 tests/deploy/packages

format: .venv/test.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

venv: .venv/run.stamp

.venv/run.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Wattline needs Python 3.11 or later, found {sys.version.split()[0]}; run: make PYTHON=python3.11")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || deploy/apt.sh python3-venv
	@echo "Installing Wattline into .venv (once, a minute or two) ..." >&2
	@$(PYTHON) -m venv .venv
	@deploy/install.sh .venv --editable '.[all]'
	@touch $@

.venv/test.stamp: .venv/run.stamp
	@deploy/install.sh .venv --group lint --group test --group torch
	@touch $@

.venv/mutants.stamp: .venv/test.stamp
	@deploy/install.sh .venv --group mutants
	@touch $@

.venv/compiled.stamp: .venv/test.stamp
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null || true
	@touch $@

servers: ## install the servers, browser, container engine, Node.js and systemd that the tests use
	@missing=; for name in prometheus victoria-metrics chromium podman runc busybox:busybox-static \
			systemd-analyze:systemd ip:iproute2 iptables netavark aardvark-dns mmdebstrap kubectl:kubernetes-client \
			node:nodejs npm containerd munged:munge mariadbd:mariadb-server slurmdbd slurmctld slurmd sbatch:slurm-client; do \
		PATH="$$PATH:/usr/sbin:/usr/lib/podman" command -v $${name%:*} >/dev/null || missing="$$missing $${name#*:}"; done; \
	test -z "$$missing" || deploy/apt.sh $$missing || test -z "$$CI"

clean:
	rm -rf .venv build demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
