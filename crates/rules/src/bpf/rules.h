/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Decisions of the scheduler, in integer arithmetic
 *
 * The BPF programs (crates/scx) include these headers, and src/rules.c compiles them for unit
 * tests. The functions only compute from their arguments: they call no kernel function and keep no
 * state. All loops run over tables of fixed size.
 *
 *   choose.h   selection of a CPU (papers 3b and 1)
 *   share.h    shares of the CPU
 *   turns.h    selection of the next thread (paper 4)
 *   balance.h  load balancing between LLCs
 *   spread.h   comparison of LLCs and nodes for new threads
 *   group_share.h  shares of cgroups
 *   quota.h    budgets of cgroups with a quota
 *   numbers.h  integer arithmetic
 */
#ifndef USHER_RULES_RULES_H
#define USHER_RULES_RULES_H

#include "balance.h"
#include "choose.h"
#include "group_share.h"
#include "quota.h"
#include "spread.h"
#include "turns.h"

#endif
