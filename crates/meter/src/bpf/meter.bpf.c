// SPDX-License-Identifier: GPL-2.0-only
/*
 * Includes all BPF programs of the meter. The programs are attached to trace
 * points with BTF types (tp_btf), except one task iterator, and one syscall
 * program that starts a timer. The meter uses no kprobes and no fentry
 * programs, because some kernels reject them.
 */
#include "pid_map.bpf.c"
#include "rq_imbalance.bpf.c"
#include "cpu.bpf.c"
#include "disk.bpf.c"
#include "link.bpf.c"

char _license[] SEC("license") = "GPL";
