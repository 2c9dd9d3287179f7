/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * All variables of the scheduler, each with the prefix g_.
 *
 * The BPF build includes this file once, at file scope. The host build includes it inside
 * the structure of one instance, so that many instances run in one process. Hence there is
 * no include guard, and no initialiser: every variable begins as zeros.
 *
 * Variables that user space reads or writes have a section, and so a map, of their own. The
 * other variables are no maps: their address takes four instructions and no check.
 */
struct settings g_settings SEC(".data.settings");
const volatile struct variant g_variant SEC(".rodata.variant");
struct cpu_tally g_tallies[CPUS_MAX] SEC(".data.tallies");
struct seating g_seating SEC(".data.seating");

struct cpu_state g_cpu_states[CPUS_MAX];
struct llc_rq g_llc_rqs[LLCS_MAX];

/* Scratch space of the CPU that runs a callback; no callback interrupts another. */
struct idle_scan_ctx g_scan_ctxs[CPUS_MAX];

/* CPUs of the machine. */
struct cpu_set g_cpus;

/*
 * Idle CPUs, as reported by update_idle; initially all CPUs. The kernel keeps a set of its own,
 * from which CPUs are claimed. Reading that set is expensive, so that it is read only when this set
 * is not empty. The kernel may update its set before or after it calls update_idle.
 */
struct cpu_set g_idle_cpus __attribute__((aligned(CACHE_LINE)));

/* CPUs that run borrowers, or ran one before their current real-time thread. */
struct cpu_set g_borrowers __attribute__((aligned(CACHE_LINE)));

/* Amount that a callback itself adds to the current thread's migration_disabled. */
__u32 g_added_by_bpf;
