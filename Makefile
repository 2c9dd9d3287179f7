# SPDX-License-Identifier: MIT OR Apache-2.0
#
#   make run       a mix of four real programs under four policies, with a report
#   make test      everything that CI checks
#   make lint      formatting and lints only
#   make lab       all tests in guests: other machines, other kernels
#   make mutants   mutation test of the scheduler; MUTANTS="--only dispatch.h"
#   make bless     accept the present output as the golden output
#   make install   PREFIX=/usr/local DESTDIR=
#   make install-tasks   the same for the C library of the task runtime alone
#   make install-slurm   the same for the plugin that Slurm loads (docs/slurm.md)
#   make uninstall   removes what `make install` put there
#   make loc       lines of code: the product, the evidence, all
#   make deb       Debian packages, in target/deb
#   make dist      a tarball for any x86-64 machine with glibc 2.34, in target/dist-tarball

CARGO ?= cargo
PREFIX ?= /usr/local
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

TARGET := $(or $(CARGO_TARGET_DIR),target)
PROFILE ?= release
BIN = $(TARGET)/$(PROFILE:dev=debug)
# Absolute, because installed files contain it; it may have spaces.
override PREFIX := $(if $(PREFIX),$(shell realpath --canonicalize-missing --no-symlinks -- "$(PREFIX)"))
STAGE = $(TARGET)/stage
# The C library of the task runtime is small in this profile only, and is built quickly.
TASKS_PROFILE = $(if $(filter dev,$(PROFILE)),dev,dist)
TASKS_BIN = $(TARGET)/$(TASKS_PROFILE:dev=debug)

# The second workspace: benchmarks and models of the papers' machines. The product builds, tests
# and installs without it. In the same target folder, crates of the registry are built once.
HAS_EVIDENCE := $(wildcard evidence/Cargo.toml)
# A stage of it, where it is present: $(call evidence,NAME,SUBCOMMAND,OPTIONS)
evidence = $(if $(HAS_EVIDENCE),scripts/stage "evidence: $1" \
  $(CARGO) $2 --manifest-path evidence/Cargo.toml --target-dir $(TARGET) --locked $3)
# What `make install` installs.
PARTS := tasks programs $(if $(HAS_EVIDENCE),bench)

# Crates with unsafe code that runs in our own address space.
SANITIZED := usher-heartbeat usher-act usher-meter usher-rules usher-tasks usher-tasks-capi
HOST := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
# The sanitizer's runtime comes with stable Rust, the flag that links it does not.
# Tests request more memory than there is, and expect an error.
ASAN := RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer" \
  ASAN_OPTIONS=allocator_may_return_null=1
# Lock-free code; in a target directory of its own, as the flags differ. Without
# backtraces, which the standard library makes behind a lock that the sanitizer cannot see.
RACED := usher-heartbeat usher-tasks
TSAN := RUSTC_BOOTSTRAP=1 RUST_BACKTRACE=0 RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" \
  TSAN_OPTIONS="suppressions=$(CURDIR)/scripts/tsan.supp"

C_FILES = $(shell git ls-files '*.c' '*.cpp' '*.h' 2>/dev/null)
C_FLAGS := -O2 -Wall -Wextra -Werror

# libusher_tasks: its version, and where it is installed to be tried.
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
STAGED = $(abspath $(TARGET))/installed
# Only the thread handles that Rust's test harness keeps are possibly lost.
VALGRIND := valgrind --quiet --error-exitcode=9 --fair-sched=yes --leak-check=full
VALGRIND_TESTS := $(VALGRIND) --show-leak-kinds=definite,indirect --errors-for-leak-kinds=definite,indirect
RUNNER = CARGO_TARGET_$(shell echo $(HOST) | tr a-z- A-Z_)_RUNNER

# With the features of the whole workspace, so that nothing is built again after the unit tests.
IN_GUESTS = $(CARGO) test --locked --workspace
# Test programs of a crate, each run in a guest.
GUEST_RUNNER = $(RUNNER)="$(abspath $(TARGET))/debug/usher-lab --topology core:4 --timeout 1500 --kernel
UNDO := --package usher-act --package usher --tests

# A build tool that is missing is named before anything is built or installed.
TOOLS := cargo:https://rustup.rs pkg-config:pkg-config cc:gcc make:make clang-19:clang-19 lib:hwloc:libhwloc-dev \
  lib:libelf:libelf-dev lib:zlib:zlib1g-dev lib:libudev:libudev-dev
# What packages contain beside usher-bench.
SHIPPED := --package usher --package usher-ompt

.PHONY: run test build build-run build-tasks setup setup-lab setup-examples setup-compared lint fmt clippy deny unit fuzz loom fuzz-loom doc \
  sanitize asan tsan c-examples valgrind media slurm bless install install-tasks install-slurm uninstall \
  deb dist packages deb-test kernels guests hosts lab \
  new-skips skips loc mutants

# One after the other, also under make -j: they share cargo's lock anyway.
.NOTPARALLEL:

test: new-skips setup setup-compared fmt clippy packages deny unit fuzz-loom deb-test slurm guests doc c-examples valgrind media sanitize skips
	@echo "make test: everything passed"

# Tests that cannot run on this machine append themselves to this file (crates/skip).
export USHER_SKIPPED ?= $(abspath $(TARGET))/skipped

new-skips:
	@mkdir -p $(TARGET)
	@: >$(USHER_SKIPPED)

# The number and the list of skipped tests. With STRICT=1, a skip that .ci/skipped lacks is an error.
skips:
	@scripts/skips $(USHER_SKIPPED) .ci/skipped

setup:
	@scripts/stage setup scripts/setup build tests

setup-lab:
	@scripts/stage "setup of the lab" scripts/setup build lab

setup-examples:
	@scripts/stage setup scripts/setup build examples

# What the tests of examples/compare and examples/media run, and Slurm.
setup-compared:
	@scripts/stage "setup of examples" scripts/setup pytest transcode media slurm

build:
	@scripts/need $(TOOLS) strip:binutils objcopy:binutils
	@scripts/stage build $(CARGO) build --locked --profile $(PROFILE) --workspace
	@$(call evidence,build,build,--profile $(PROFILE) --workspace)

# Without the benchmarks, which a user does not need.
build-run:
	@scripts/stage build $(CARGO) build --locked --release --package usher --package usher-ompt

# The C library of the task runtime.
build-tasks:
	@scripts/need cargo:https://rustup.rs cc:gcc strip:binutils objcopy:binutils ld:binutils ar:binutils nm:binutils
	@scripts/stage "build of libusher_tasks" scripts/tasks-library build $(TASKS_PROFILE)

lint: setup fmt clippy

fmt:
	@scripts/stage format $(CARGO) fmt --all --check
	@$(if $(HAS_EVIDENCE),scripts/stage "evidence: format" sh -c 'cd evidence && exec $(CARGO) fmt --check')
	@scripts/stage "C format" clang-format --dry-run -Werror $(C_FILES)

clippy:
	@scripts/stage lints $(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	@$(call evidence,lints,clippy,--workspace --all-targets -- -D warnings)
	@for features in "" trace-json trace-svg tsc; do \
	  scripts/stage "lints of usher-tasks with features: $${features:-none}" $(CARGO) clippy --locked \
	    --package usher-model --package usher-tasks --no-default-features \
	    --features "$${features:+usher-tasks/$$features}" --lib -- -D warnings || exit; \
	done
	@scripts/stage "lints of guests" $(CARGO) clippy --locked --workspace --test guests --test lab --test hosts -- -D warnings
	@$(call evidence,lints of guests,clippy,--workspace --test baselines -- -D warnings)

# Installed files, the errors for missing tools, the rights of the units.
packages:
	@scripts/stage packages sh -ec 'integrations/tests/install; integrations/tests/dist'
	@scripts/stage units integrations/tests/units

# Rules for third-party crates: deny.toml.
deny:
	@scripts/stage dependencies scripts/deny

# The second workspace is built while the tests of the first run, and both often wait.
UNIT := $(CARGO) test --locked --workspace --no-fail-fast
unit:
	@$(if $(HAS_EVIDENCE),scripts/at-once tests "$(UNIT)" "evidence: tests" \
	  "$(UNIT) --manifest-path evidence/Cargo.toml --target-dir $(TARGET)",scripts/stage tests $(UNIT))

# From debug builds, which the tests need anyway.
deb-test:
	@$(CARGO) build --locked --quiet --workspace --lib --bins
	@$(call evidence,build,build,--quiet --workspace --bins)
	@scripts/stage "Debian packages" integrations/tests/deb $(TARGET)/debug

# Every parser and the socket with random changes of valid inputs, for so many seconds.
FUZZ_SECONDS ?= 180
# The same inputs at each run, so that results are comparable; `make lab` tries others.
export USHER_FUZZ_SEED ?= 1
fuzz:
	@scripts/stage fuzzing scripts/fuzz $(FUZZ_SECONDS)

# Fuzzing takes a fixed time, whatever runs beside it; it tries fewer inputs in that time.
fuzz-loom:
	@scripts/at-once fuzzing "scripts/fuzz $(FUZZ_SECONDS)" interleavings "$(LOOM)"

# Emulator and kernels of guests: fetched once.
kernels: setup-lab
	@$(CARGO) build --locked --quiet --workspace --bin usher-lab
	@scripts/stage kernels $(TARGET)/debug/usher-lab --prepare

# Other machines and kernels: the quick part. And Usher as installed on a Debian with systemd, for
# root and two users; the image is built once. Each emulator uses one CPU of this machine: the
# systemd guest runs beside the others, and no CPU is idle at the end.
ifeq ($(shell id -u),0)
guests: kernels
	@scripts/stage guests $(IN_GUESTS) --test guests
	@$(call evidence,guests,test,--workspace --test baselines)
	@scripts/at-once "Usher in guests" "$(IN_GUESTS) --test lab -- quick::" \
	  "systemd guest" "$(IN_GUESTS) --test hosts -- quick::"

hosts: setup-lab
	@scripts/stage "systemd guest" $(IN_GUESTS) --test hosts -- quick::
else
guests:
	@echo "Makefile: guests: without root no files can be shared with them" | tee -a $(USHER_SKIPPED)
	@echo "Makefile: hosts: without root the disk of the systemd guest cannot be built" | tee -a $(USHER_SKIPPED)

hosts: guests
endif

# Every kernel on every machine; and the undo, with a real cgroup v2.
lab: guests
	@$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=3600 USHER_FUZZ_SEED=
	@scripts/stage "Usher in all guests" $(IN_GUESTS) --test lab -- long::
	@$(CARGO) build --locked --quiet --workspace --lib --bins
	@$(call evidence,build,build,--quiet --workspace --bins)
	@scripts/stage "all systemd guests" $(IN_GUESTS) --test hosts -- long::
	@for kernel in oldest newest; do \
	  $(GUEST_RUNNER) $$kernel --" scripts/stage "tests under the $$kernel kernel" \
	    $(CARGO) test --locked $(UNDO) --no-fail-fast; \
	done

# Lock-free code in every interleaving; with optimisation, as there are many.
LOOM = $(CARGO) test --locked --release --package usher-tasks --features loom --lib
loom:
	@scripts/stage interleavings $(LOOM)

doc:
	@RUSTDOCFLAGS="-D warnings" scripts/stage documentation $(CARGO) doc --locked --workspace --no-deps --document-private-items
	@RUSTDOCFLAGS="-D warnings" $(call evidence,documentation,doc,--workspace --no-deps --document-private-items)

# The one-liners that the examples document.
c-examples: build-tasks
	@mkdir -p $(TARGET)/c-examples
	@$(MAKE) --no-print-directory install-tasks PREFIX=$(STAGED) DESTDIR= >/dev/null
	@[ $(TASKS_PROFILE) = dev ] || scripts/tasks-library check $(STAGED)/lib
	@scripts/stage "C examples" sh -ec '\
	  cd $(TARGET)/c-examples; src=$(CURDIR); own="-I $(CURDIR)/crates/tasks-capi/include"; \
	  installed() { PKG_CONFIG_PATH=$(STAGED)/lib/pkgconfig pkg-config "$$@" usher-tasks; }; \
	  cc $(C_FLAGS) -pthread -I $$src/crates/heartbeat/include -o primes $$src/examples/heartbeat/primes.c; \
	  clang $(C_FLAGS) -fopenmp -o heat $$src/examples/openmp/heat.c; \
	  cc $(C_FLAGS) $$src/examples/tasks/wavefront.c $$(installed --cflags --libs) -o wavefront; \
	  cc $(C_FLAGS) $$src/examples/tasks/stages.c $$(installed --cflags --libs) -o stages; \
	  cc $(C_FLAGS) $$src/examples/tasks/factors.c $$(installed --cflags --libs) -o factors; \
	  c++ $(C_FLAGS) $$src/examples/tasks/lambdas.cpp $$(installed --cflags --libs) -o lambdas; \
	  c++ $(C_FLAGS) -std=c++17 $$src/examples/tasks/futures.cpp $$(installed --cflags --libs) -o futures; \
	  cc $(C_FLAGS) $$src/examples/tasks/wavefront.c -o wavefront-static \
	    $$(installed --static --cflags --libs | sed s/-lusher_tasks/-l:libusher_tasks.a/); \
	  for compile in "cc $$src/examples/tasks/wavefront.c" "c++ $$src/examples/tasks/lambdas.cpp"; do \
	    $$compile $(C_FLAGS) $$own $(abspath $(TASKS_BIN))/libusher_tasks_capi.a -lpthread -lm -ldl \
	      -o $$(basename $${compile#* } | cut -d. -f1)-uninstalled; \
	  done; \
	  export LD_LIBRARY_PATH=$(STAGED)/lib; \
	  [ "$$(./primes 2 100000)" = "9592 primes below 100000" ]; \
	  [ "$$(./heat 3 1)" = "25.000000 degrees next to the hot edge" ]; \
	  for way in "" -uninstalled -static; do \
	    ./wavefront$$way 3 | diff - $$src/examples/tasks/wavefront.expected; \
	  done; \
	  ./stages 3 | diff - $$src/examples/tasks/stages.expected; \
	  ./factors 3 | diff - $$src/examples/tasks/factors.expected; \
	  ./futures 3 | diff - $$src/examples/tasks/futures.expected; \
	  for way in "" -uninstalled; do \
	    ./lambdas$$way 3 | diff - $$src/examples/tasks/lambdas.expected; \
	  done'
	@scripts/stage "adapters of foreign thread pools" integrations/tests/adapters $(abspath $(TASKS_BIN))

# The C examples, and random calls of the C API: no errors, no leaks.
valgrind: c-examples
	@scripts/stage valgrind sh -ec '\
	  for program in wavefront stages factors lambdas futures; do \
	    LD_LIBRARY_PATH=$(STAGED)/lib $(VALGRIND) --show-leak-kinds=all --errors-for-leak-kinds=all \
	      $(TARGET)/c-examples/$$program 2 >/dev/null; \
	  done; \
	  USHER_CALLS_CASES=20 $(RUNNER)="$(VALGRIND_TESTS)" $(CARGO) test --locked \
	    --package usher-tasks-capi --test bad_input --test callbacks --test calls --test storm'

# FFmpeg's VVC decoder and kvazaar on the C library: the sources are fetched and built once.
media: setup-compared
	@scripts/stage "media programs" integrations/tests/media

# The plugin on a Slurm cluster of four nodes on this machine.
slurm: setup-compared
	@$(CARGO) build --locked --quiet --package usher --bin usher
	@scripts/stage "Slurm cluster" integrations/tests/slurm $(TARGET)/debug/usher

# Side by side, as the thread sanitizer runs one test at a time.
sanitize:
	@scripts/at-once "address sanitizer" "$(MAKE) --no-print-directory asan" \
	  "thread sanitizer" "$(MAKE) --no-print-directory tsan"

asan:
	@$(ASAN) $(CARGO) test --locked --target $(HOST) --lib --tests $(SANITIZED:%=--package %)

tsan:
	@$(TSAN) $(CARGO) test --locked --target $(HOST) --target-dir $(TARGET)/tsan --lib --tests $(RACED:%=--package %) \
	  --features usher-tasks/tsan \
	  -- --test-threads 1 --nocapture

# Replaces each operator of the scheduler's C headers and runs the host tests: CONTRIBUTING.md.
mutants:
	@$(CARGO) run --locked --quiet --package usher-tidy --example mutants -- $(MUTANTS)

bless: setup
	INSTA_UPDATE=always $(CARGO) test --locked --workspace
	@git status --short

run: setup-examples build-run
	@scripts/run-main $(BIN)/usher

# The files that are installed are listed once, in scripts/install.
install-tasks: build-tasks
	@scripts/install gather $(TASKS_BIN) $(VERSION) $(STAGE)-tasks tasks
	@scripts/install put $(STAGE)-tasks "$(PREFIX)" "$(DESTDIR)"

# The headers of Slurm must be of the release that loads the plugin.
install-slurm:
	@scripts/need cc:gcc strip:binutils objcopy:binutils
	@mkdir -p $(TARGET)/slurm
	@scripts/stage "build of the plugin for Slurm" scripts/spank-plugin $(TARGET)/slurm/spank_usher.so
	@scripts/install gather $(TARGET)/slurm $(VERSION) $(STAGE)-slurm slurm
	@scripts/install put $(STAGE)-slurm "$(PREFIX)" "$(DESTDIR)"

install: build build-tasks
	@scripts/install gather --library $(TASKS_BIN) $(BIN) $(VERSION) $(STAGE) $(PARTS)
	@scripts/install put $(STAGE) "$(PREFIX)" "$(DESTDIR)"

uninstall:
	@scripts/install remove "$(PREFIX)" "$(DESTDIR)"

# `make deb PROFILE=dev` is quicker, to try the packages.
deb: PROFILE = dist
deb:
	@scripts/need $(TOOLS) dpkg-buildpackage:dpkg-dev dh:debhelper
	@scripts/stage build $(CARGO) build --locked --profile $(PROFILE) $(SHIPPED)
	@scripts/stage "build of libusher_tasks" scripts/tasks-library build $(PROFILE)
	@$(call evidence,build,build,--profile $(PROFILE) --package usher-bench)
	@scripts/stage "Debian packages" scripts/deb $(BIN) $(VERSION) $(TARGET)/deb

# Tracked lines of Rust and C.
loc:
	@count() { git ls-files -z -- "$$@" | xargs -0 cat | wc -l; }; \
	printf '%7d  %s\n' \
	  $$(count 'crates/*.rs' 'crates/*.c' 'crates/*.h') "crates/, with tests" \
	  $$(count 'evidence/*.rs' 'evidence/*.c' 'evidence/*.h') evidence/ \
	  $$(count '*.rs' '*.c' '*.h') all

# The linker of cargo-zigbuild knows the symbols of older glibc versions.
dist: PROFILE = dist
dist:
	@scripts/need $(TOOLS) cargo-zigbuild:https://github.com/rust-cross/cargo-zigbuild objdump:binutils strip:binutils \
	  ar:binutils gzip:gzip
	@scripts/stage tarball scripts/dist $(TARGET) $(VERSION) $(PROFILE)
	@scripts/stage "tests of the tarball" integrations/tests/dist \
	  $(TARGET)/dist-tarball/usher-$(VERSION)-x86_64-linux.tar.gz
