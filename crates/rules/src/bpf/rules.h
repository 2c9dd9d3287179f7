/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What decides, in integers alone: the scheduler's programs include it (crates/scx),
 * and src/rules.c compiles it for tests and for the simulator.
 *
 *   choose.h   where a thread runs, and whose CPU that is (papers 3b and 1)
 *   share.h    what each thread is due
 *   turns.h    who is next, address space by address space (paper 4)
 *   balance.h  when one LLC takes from another
 *   numbers.h  what these reckon with
 */
#ifndef USHER_RULES_RULES_H
#define USHER_RULES_RULES_H

#include "balance.h"
#include "choose.h"
#include "turns.h"

#endif
