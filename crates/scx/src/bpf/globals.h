/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * All variables of the scheduler, each with the prefix g_.
 *
 * The BPF build includes this file once, at file scope. The host build includes it inside the
 * structure of one instance, so that many instances run in one process. For this reason, the file
 * has no include guard and no initialiser; every variable begins as zeros.
 *
 * Each variable that user space reads or writes has a section of its own, and therefore a map of
 * its own. The other variables are no maps: the BPF programs compute their addresses in four
 * instructions, without a check.
 */
struct settings g_settings SEC(".data.settings");
const volatile struct variant g_variant SEC(".rodata.variant");
struct cpu_tally g_tallies[CPUS_MAX] SEC(".data.tallies");
struct seating g_seating SEC(".data.seating");
struct limit_table g_limits SEC(".data.limits");

/* Cgroups with threads, the counters of their runnable threads, and the entries in use. */
struct group g_groups[GROUPS_MAX];
struct runnable g_runnable[GROUPS_MAX];
__u64 g_groups_used;
/* 1: the timer that computes the factors runs. */
__u32 g_group_timer_runs;
/* 1: threads of a cgroup have a factor other than FACTOR_ONE. */
__u32 g_groups_compete;

struct cpu_state g_cpu_states[CPUS_MAX];
struct llc_rq g_llc_rqs[LLCS_MAX];
/* Load of each LLC (placement.h). */
struct llc_load g_llc_loads[LLCS_MAX];

/*
 * Scratch space for callbacks, one for each CPU. It is not shared, because no callback interrupts
 * another callback on its CPU.
 */
struct idle_scan_ctx g_scan_ctxs[CPUS_MAX];

/* CPUs of the machine, and of each class by capacity. */
struct cpu_set g_cpus;
struct cpu_set g_class_cpus[CLASSES_MAX];

/*
 * Idle CPUs, as reported by update_idle; initially all CPUs. The kernel keeps another set of idle
 * CPUs, from which CPUs are claimed. Reading the kernel's set is expensive, so that it is read only
 * when g_idle_cpus is not empty. The kernel may update its set before or after it calls
 * update_idle.
 */
struct cpu_set g_idle_cpus __attribute__((aligned(CACHE_LINE)));

/* Bitmask of the words of g_idle_cpus that contain a CPU (idle.h). */
__u32 g_idle_words __attribute__((aligned(CACHE_LINE)));

/* Bitmask of the words with CPUs of each node. */
__u32 g_node_words[NODES_MAX];

/* CPUs that run a borrower, or ran a borrower before a real-time thread took over the CPU. */
struct cpu_set g_borrowers __attribute__((aligned(CACHE_LINE)));

/*
 * Bitmask of the LLCs with waiting threads. A bit may be set although no thread waits; steal()
 * clears such bits.
 */
__u64 g_waiting_llcs __attribute__((aligned(CACHE_LINE)));

/* Number by which the call of a BPF callback increases migration_disabled of the current thread. */
__u32 g_added_by_bpf;
