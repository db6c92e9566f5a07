# The front door over Meson. Everything is built in build/ (build-asan/, build-tsan/ with sanitizers); `make help` lists the targets.

BUILD := build
SETUP := packaging/setup.sh
MESON_OPTIONS := $(if $(filter 1 true yes,$(WERROR)),-Dwerror=true)
# Set-up and compilation talk on stderr, so that stdout carries only what a target is for.
compile = packaging/configure.sh $(1) $(MESON_OPTIONS) $(2) >&2 && ninja -C $(1) >&2

.PHONY: all demo test bench bench-report asan tsan interop soak planted mutation model chaos fuzz valgrind deb deb-check ci format check-format install uninstall clean help
.DEFAULT_GOAL := all

all:
	@$(SETUP) build
	@$(call compile,$(BUILD))

demo: ## train on Fashion-MNIST with two workers, kill one, go on
	@$(SETUP) build data
	@$(call compile,$(BUILD))
	@$(BUILD)/examples/demo

test: ## build, run every suite and check, count
	@$(SETUP)
	@$(call compile,$(BUILD),-Dtests=enabled)
	@tests/run plain $(BUILD)

bench: ## measure: BENCH=name one of them, QUICK=1 under a minute, PEERS=1 beside others' programs
	@$(SETUP) build data bench
	@$(call compile,$(BUILD))
	@bench/run --build $(BUILD) $(if $(filter 1,$(QUICK)),--quick) $(if $(filter 1,$(PEERS)),--peers) $(BENCH)

bench-report: ## write docs/benchmarks.md from the last measurements
	@bench/report --build $(BUILD)

asan: ## every suite with address and undefined-behaviour sanitizers
	@$(SETUP)
	@$(call compile,build-asan,-Dtests=enabled -Db_sanitize=address$(comma)undefined -Db_lundef=false)
	@tests/run sanitizers build-asan

tsan: ## the threaded parts with the thread sanitizer
	@$(SETUP)
	@packaging/configure.sh build-tsan $(MESON_OPTIONS) -Dtests=enabled -Db_sanitize=thread -Db_lundef=false >&2
	@tests/run threads build-tsan

interop: ## other programs' scripts, files and protocols; installs PyTorch when it is missing (1 GB)
	@$(SETUP) build tests interop
	@$(call compile,$(BUILD),-Dtests=enabled)
	@tests/run interop $(BUILD)

soak: ## simulate the rendezvous for MINUTES (default 10), or EVENTS=1e9 of them (goes on where it was stopped), from seed FIRST, in JOBS processes
	@$(SETUP)
	@$(call compile,$(BUILD),-Dtests=enabled)
	@$(if $(EVENTS),tests/sim/soak $(EVENTS) --build $(BUILD) --jobs $(or $(JOBS),0) $(if $(FIRST),--first $(FIRST)) $(if $(filter 1,$(FRESH)),--fresh), \
		$(BUILD)/tests/sim/sim_rendezvous soak $(or $(MINUTES),10) $(or $(FIRST),1) $(or $(JOBS),0) \
		$$(sha256sum $(BUILD)/tests/sim/sim_rendezvous | cut -d" " -f1) >$(BUILD)/soak.txt; status=$$?; cat $(BUILD)/soak.txt; exit $$status)

planted: ## after how many simulated events each planted bug of the rendezvous is found
	@$(SETUP)
	@$(call compile,$(BUILD),-Dtests=enabled)
	@$(BUILD)/tests/sim/sim_rendezvous bugs $(or $(REPEATS),20) $(or $(JOBS),0)

mutation: ## put in one deliberate bug after another: does a test catch it? ONLY=name one of them
	@$(SETUP)
	@python3 -B tests/mutation --build $(BUILD) $(ONLY)

model: ## check the model of the rendezvous with spin, and that it finds bugs; ALL=1: larger runs too; ONLY=name one run or bug
	@$(SETUP) model
	@docs/model/check --build $(BUILD) $(if $(filter 1,$(ALL)),--all) $(if $(ONLY),--way $(ONLY))

chaos: ## break jobs on purpose: each way once and 20 pairs; MINUTES=n: for so long, from SEED, JOBS at a time; report in build/chaos/
	@$(SETUP)
	@$(call compile,$(BUILD),-Dtests=enabled)
	@tests/fault/elastic-chaos $(if $(MINUTES),soak --minutes $(MINUTES) --shrink 10,run --default --shrink 2) \
		--build $(BUILD) $(if $(SEED),--seed $(SEED)) --jobs $(or $(JOBS),$(shell expr 3 '*' $$(nproc)))

fuzz: ## fuzz each reader of foreign bytes for SECONDS (default 60), then say what the kept corpora reach; TARGETS="ctl spec" some of them
	@$(SETUP) build tests fuzz
	@tests/fuzz/run $(or $(SECONDS),60) $(TARGETS)

valgrind: ## the unit suite under valgrind; PART=1/3: the first of three parts of it
	@$(SETUP)
	@$(call compile,$(BUILD),-Dtests=enabled)
	@tests/run valgrind $(BUILD) $(PART)

format: ## rewrite the C files as .clang-format says
	@$(SETUP) tests
	@tests/check/format.py --fix

check-format: ## fail when a C file is not formatted
	@$(SETUP) tests
	@tests/check/format.py

deb: ## Debian packages into build-deb/
	@$(SETUP) build deb
	@packaging/deb

deb-check: deb ## do they pass lintian, install, run the demo, upgrade and go (the latter as root, in a copy of the system)
	@$(SETUP) data
	@packaging/deb-check

install: ## install below PREFIX, /usr/local if it was never given (DESTDIR=... to stage)
	@$(SETUP) build
	@$(call compile,$(BUILD))
	@$(if $(PREFIX),meson configure $(BUILD) -Dprefix=$(PREFIX) && ninja -C $(BUILD) >&2)
	@DESTDIR="$(DESTDIR)" meson install -C $(BUILD) --no-rebuild

uninstall: ## remove what install put there (with the same DESTDIR)
	@packaging/uninstall.py $(BUILD) "$(DESTDIR)"

clean: ## remove everything that was built
	rm -rf $(BUILD) build-asan build-tsan build-deb build-fuzz build-fuzz-cover

help: ## this list
	@echo 'make           build everything in $(BUILD)/'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

comma := ,
