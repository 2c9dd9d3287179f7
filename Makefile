# SPDX-License-Identifier: MIT OR Apache-2.0
#
#   make run       a mix of four real programs under four policies, with a report
#   make test      everything that CI checks
#   make lint      formatting and lints only
#   make bless     accept the present output as the golden output
#   make install   PREFIX=/usr/local DESTDIR=

CARGO ?= cargo
PREFIX ?= /usr/local
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

TARGET := $(or $(CARGO_TARGET_DIR),target)
BIN := $(TARGET)/release
INSTALL := install -D --mode=644
INSTALL_PROGRAM := install -D --mode=755
ROOT := $(DESTDIR)$(PREFIX)

# Crates with unsafe code that runs in our own address space.
SANITIZED := usher-heartbeat usher-act usher-meter usher-tasks
HOST := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
# The sanitizer's runtime comes with stable Rust, the flag that links it does not.
ASAN := RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer"
# Lock-free code; in a target directory of its own, as the flags differ.
RACED := usher-heartbeat
TSAN := RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" \
  TSAN_OPTIONS="suppressions=$(CURDIR)/scripts/tsan.supp"

C_FILES = $(shell git ls-files '*.c' '*.h' '*.cpp' 2>/dev/null)
C_FLAGS := -O2 -Wall -Wextra -Werror

.PHONY: run test build build-run setup setup-examples lint fmt clippy unit loom doc sanitize c-examples bless install

# One after the other, also under make -j: they share cargo's lock anyway.
.NOTPARALLEL:

test: setup fmt clippy unit loom doc c-examples sanitize
	@echo "make test: everything passed"

setup:
	@scripts/stage setup scripts/setup build

setup-examples:
	@scripts/stage setup scripts/setup build examples

build:
	@scripts/stage build $(CARGO) build --locked --release --workspace

# Without the benchmarks, which a user does not need.
build-run:
	@scripts/stage build $(CARGO) build --locked --release --package usher --package usher-ompt

lint: setup fmt clippy

fmt:
	@scripts/stage format $(CARGO) fmt --all --check
	@scripts/stage "C format" clang-format --dry-run -Werror $(C_FILES)

clippy:
	@scripts/stage lints $(CARGO) clippy --locked --workspace --all-targets -- -D warnings

unit:
	@scripts/stage tests $(CARGO) test --locked --workspace --no-fail-fast

# Lock-free code in every interleaving; with optimisation, as there are many.
loom:
	@scripts/stage interleavings $(CARGO) test --locked --release --package usher-tasks --features loom --lib

doc:
	@RUSTDOCFLAGS="-D warnings" scripts/stage documentation $(CARGO) doc --locked --workspace --no-deps --document-private-items

# The one-liners that the examples document.
c-examples:
	@mkdir -p $(TARGET)/c-examples
	@scripts/stage "C examples" sh -ec '\
	  cc $(C_FLAGS) -pthread -I crates/heartbeat/include -o $(TARGET)/c-examples/primes examples/heartbeat/primes.c; \
	  clang $(C_FLAGS) -fopenmp -o $(TARGET)/c-examples/heat examples/openmp/heat.c; \
	  [ "$$($(TARGET)/c-examples/primes 2 100000)" = "9592 primes below 100000" ]; \
	  [ "$$($(TARGET)/c-examples/heat 3 1)" = "25.000000 degrees next to the hot edge" ]'

sanitize:
	@$(ASAN) scripts/stage "address sanitizer" \
	  $(CARGO) test --locked --target $(HOST) --lib --tests $(SANITIZED:%=--package %)
	@$(TSAN) scripts/stage "thread sanitizer" \
	  $(CARGO) test --locked --target $(HOST) --target-dir $(TARGET)/tsan --lib --tests $(RACED:%=--package %) \
	  -- --test-threads 1 --nocapture

bless: setup
	INSTA_UPDATE=always $(CARGO) test --locked --workspace
	@git status --short

run: setup-examples build-run
	@scripts/run-main $(BIN)/usher

install: build
	$(INSTALL_PROGRAM) $(BIN)/usher $(ROOT)/bin/usher
	$(INSTALL_PROGRAM) $(BIN)/usher-bench $(ROOT)/bin/usher-bench
	$(INSTALL) $(BIN)/libusher_ompt.so $(ROOT)/lib/usher/libusher_ompt.so
	$(INSTALL) crates/heartbeat/include/usher_heartbeat.h $(ROOT)/include/usher_heartbeat.h
	$(BIN)/usher man $(ROOT)/share/man/man1 >/dev/null
	for shell in bash:bash-completion/completions/usher zsh:zsh/site-functions/_usher \
	  fish:fish/vendor_completions.d/usher.fish; do \
	    mkdir -p $(ROOT)/share/$$(dirname $${shell#*:}); \
	    $(BIN)/usher completions $${shell%%:*} >$(ROOT)/share/$${shell#*:}; \
	  done
	for unit in system user; do \
	    mkdir -p $(ROOT)/lib/systemd/$$unit; \
	    sed 's|@PREFIX@|$(PREFIX)|g' crates/usher/dist/$$unit/usher.service >$(ROOT)/lib/systemd/$$unit/usher.service; \
	  done
